"""Claim ``clean-path``: pre-norm has an unnormalised way from input to output, post-norm has none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from skipway.diagnostics.path_spectrum import path_spectrum
from skipway.models import create_model
from skipway.parts import Table
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded
from skipway.units.alteration import Alteration
from skipway.units.what_if import what_if

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from skipway.models import Net

__all__ = ["Way", "judged", "way"]


@dataclass(frozen=True, kw_only=True)
class Way:
    """The way that passes no branch.

    Args:
        road: what the gradient by path length says of it: ``"unchanged"``, ``"scaled"``, ``"changed"``, ``"none"``.
        factor: norm of the gradient that arrives over that of the one behind the last unit.
        apart: norm of the difference of the two over that of the one behind the last unit; 0 only if every bit agrees.
    """

    road: str
    factor: float | None
    apart: float


def way(net: Net, batch: Tensor) -> Way:
    """Measure it twice: by path length, and with the branches cut out of the backward pass.

    Args:
        net: a transformer or another net with one stream.
        batch: what it is called with.
    """
    found = path_spectrum(net, batch, max_length=0, sampled=0)
    ends: list[Tensor] = []
    units = net.stack.built_units()
    handles = [
        units[0].register_forward_hook(lambda _m, inputs, _out: ends.append(inputs[0])),
        units[-1].register_forward_hook(lambda _m, _inputs, out: ends.append(out)),
    ]
    try:
        with what_if(net, {"*": Alteration(branch_gradient=0.0)}, batch):
            output = net(batch)
            # No sum: behind a norm the entries of a token add up to a constant.
            weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            first, last = torch.autograd.grad((output * weights).sum(), ends[-2:])
    finally:
        for handle in handles:
            handle.remove()
    return Way(road=found.road, factor=found.road_factor, apart=float((first - last).norm() / last.norm()))


def judged(pre: Mapping[str, Way], post: Mapping[str, Way]) -> Judgement:
    """By the bits that arrive.

    Args:
        pre: of nets with the norm in the branch.
        post: of nets with the norm behind the sum.
    """
    clean = all(one.road == "unchanged" and one.apart == 0 for one in pre.values())
    broken = all(one.road != "unchanged" and one.apart > 0 for one in post.values())
    verdict: Verdict = "holds" if clean and broken else "does not hold"
    both = {**pre, **post}
    worst = max(one.apart for one in pre.values())
    least = min(one.apart for one in post.values())
    return Judgement(
        verdict=verdict,
        figure=f"by the way of length 0 the gradient arrives with a difference of {worst:.3g} in pre-norm and of "
        f"{least:.2g} or more of its norm in post-norm",
        words="Of the gradient behind the last unit, in float64. In front of the head stands one more norm in "
        "pre-norm nets, behind the last addition: it is on every way, once.",
        numbers={name: asdict(one) for name, one in both.items()},
        parts=(
            Table(
                columns=("net", "way of length 0", "factor", "difference"),
                rows=tuple(
                    (name, one.road, "–" if one.factor is None else f"{one.factor:.3g}", f"{one.apart:.3g}")
                    for name, one in both.items()
                ),
                numeric=("factor", "difference"), title="What becomes of the gradient by the way of length 0",
            ),
        ),
    )  # fmt: skip


@claim(
    "clean-path",
    source="001 (residual connections), pre-norm against post-norm",
    statement="In pre-norm a clean, unnormalised way leads from input to output; in post-norm the stream passes a "
    "LayerNorm in every layer, which rescales it and breaks the straight way of the gradient.",
    measurement="The gradient at path length 0 in front of the first unit, against the one behind the last unit, in "
    "transformers of 4 and 12 layers, in float64; and the same with the branches cut out of the backward pass.",
    criterion="Holds if in pre-norm the two are equal to the last bit (difference exactly 0, road 'unchanged'), and "
    "in post-norm they are not.",
)
def check(_bench: Bench) -> Judgement:
    """Two transformers in each arrangement."""
    pre: dict[str, Way] = {}
    post: dict[str, Way] = {}
    with seeded(0):
        for design, into in (("pre_norm", pre), ("post_norm", post)):
            for name, depth in (("gpt_nano", 4), ("bert_nano", 12)):
                net = create_model(f"{name}@{design}", width=32, depth=depth).double()
                into[f"{name}@{design}, {depth} layers"] = way(net, torch.randint(0, 256, (2, 8)))
    return judged(pre, post)
