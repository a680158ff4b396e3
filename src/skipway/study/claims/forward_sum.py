"""Claim ``forward-sum``: a deep unit's feature is a shallow one's plus the branches between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from skipway.models import create_model
from skipway.parts import Heatmap
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import EXACT, passes, seeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from skipway.models import Net
    from skipway.study.claims._measures import Pass

__all__ = ["CONTRAST", "gaps", "judged", "stretches"]

# What is not a sum is off by a good part of the stream; a thousandth is far above rounding and far below that.
CONTRAST: Final = 1e-3


def stretches(net: Net, batch: Tensor) -> list[list[Pass]]:
    """Units in a row that keep the shape of the stream."""
    found: list[list[Pass]] = [[]]
    for passed in passes(net, batch):
        if passed.keeps_shape:
            found[-1].append(passed)
        else:
            found.append([])
    return [stretch for stretch in found if stretch]


def gaps(stretch: list[Pass]) -> list[list[float | None]]:
    """Largest entry of ``x_L − x_l − Σ F`` over the largest of ``x_L``, a row for each l; None for L ≤ l."""
    streams = [*(p.x for p in stretch), stretch[-1].out]
    rows: list[list[float | None]] = []
    for start in range(len(stretch)):
        row: list[float | None] = [None] * (start + 1)
        # The branches by themselves: added to the stream in order they would only repeat the run.
        total = torch.zeros_like(streams[start])
        for end in range(start, len(stretch)):
            total = total + stretch[end].branch
            reached = streams[end + 1]
            row.append(float((reached - streams[start] - total).abs().max() / reached.abs().max()))
        rows.append(row)
    return rows


def widest(net: Net, batch: Tensor) -> tuple[float, int]:
    """Largest gap over all pairs within all stretches, and how many pairs there are."""
    found = [g for stretch in stretches(net, batch) for row in gaps(stretch) for g in row if g is not None]
    return (math.inf if any(map(math.isnan, found)) else max(found)), len(found)


def judged(clean: Mapping[str, tuple[float, int]], other: Mapping[str, float]) -> Judgement:
    """By the largest gap, against nets that lack what the claim supposes.

    Args:
        clean: largest gap and number of pairs by net, of nets whose h and f are the identity.
        other: largest gap by net, of nets with something on the stream.
    """
    worst, pairs = max(gap for gap, _ in clean.values()), sum(n for _, n in clean.values())
    verdict: Verdict = "holds" if worst <= EXACT else "does not hold"
    blurred = [name for name, gap in other.items() if gap < CONTRAST]
    needed = "each breaks the sum" if not blurred else f"{', '.join(blurred)} keeps the sum all the same"
    return Judgement(
        verdict=verdict,
        figure=f"x_L − x_l − ΣF is at most {worst:.1e} of x_L, over {pairs:,} pairs within the stages of "
        f"{' and '.join(clean)} (float64)",
        words="With a ReLU behind the sum, a projection on the shortcut or no shortcut, "
        f"{needed}: " + ", ".join(f"{name} {gap:.2g}" for name, gap in other.items()) + ".",
        numbers={
            "gap": {name: gap for name, (gap, _) in clean.items()}, "pairs": pairs, "gap_of_others": dict(other),
        },
    )  # fmt: skip


@claim(
    "forward-sum",
    source="003, He et al. 2016, arXiv 1603.05027, equation 4",
    statement="If h and f are the identity, x_L = x_l + ΣF(x_i), for every deep unit L and shallow unit l; a plain "
    "net is a product instead.",
    measurement="x_L − x_l − ΣF for every pair l < L within a stage, in float64: pre-activation nets of 56 and 1,001 "
    "layers, and nets with a ReLU behind the sum, a projection on every shortcut, and no shortcut.",
    criterion="Holds if it is at most 1e-12 of the largest entry of x_L for every pair in both pre-activation nets. "
    "That the others exceed 1e-3 is reported beside it: it shows that the measurement can fail.",
)
def check(_bench: Bench) -> Judgement:
    """Two deep clean nets, three others."""
    clean, other = {}, {}
    with seeded(0):
        batch = torch.randn(2, 3, 8, 8).double()
        for name in ("resnet56@preact", "resnet1001@preact"):
            clean[name] = widest(create_model(name).double(), batch)
        for name in ("resnet56", "resnet20@preact(shortcut=C)", "plain20"):
            net = create_model(name).double()
            other[name] = widest(net, batch)[0]
            if name == "resnet56":
                shown = gaps(stretches(net, batch)[0])
    judgement = judged(clean, other)
    return Judgement(
        verdict=judgement.verdict, figure=judgement.figure, words=judgement.words, numbers=judgement.numbers,
        parts=(
            Heatmap(
                values=tuple(tuple(row) for row in shown), rows=tuple(f"l = {k}" for k in range(len(shown))),
                columns="unit L", title="What is missing from the sum in resnet56, first stage, as a part of x_L",
                note="With a ReLU behind the sum the sum does not hold, and less the farther apart the units are.",
            ),
        ),
    )  # fmt: skip
