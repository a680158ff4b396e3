"""Claim ``grad-40-tanh``: the figures that the document prints behind its own program of forty tanh layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from skipway.models import Stack
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PRINTED", "SEEDS", "input_gradient", "judged", "pair"]

PRINTED: Final = (1.4e-06, 2.6e01)
SEEDS: Final = 20
# Two digits are printed: what rounds to them lies within half a unit of the second, at most 5 %.
_ROUNDED: Final = 0.05
_DEAD: Final = 1e-3


def input_gradient(residual: bool, depth: int = 40, width: int = 64) -> float:
    """The document's function, its loop over layers as a `Stack`: norm of the gradient of the input, (8,D)."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    x = torch.randn(8, width, requires_grad=True)
    stack = Stack(layers, "post_act" if residual else "plain", norm="none", act="none")
    (found,) = torch.autograd.grad(stack(x).sum(), x)
    return float(found.norm())


def pair(seed: int, *, depth: int = 40) -> tuple[float, float]:
    """Without and with the shortcut, one after the other from one seed, as the document's program has it."""
    with seeded(seed):
        return input_gradient(False, depth), input_gradient(True, depth)


def judged(pairs: Sequence[tuple[float, float]]) -> Judgement:
    """By the printed figures, and by what they are to show.

    Args:
        pairs: without and with, for seeds 0, 1, 2 …; seed 0 is the document's.
    """
    seed0, every = pairs[0], list(zip(*pairs, strict=True))
    printed = all(abs(found / value - 1) <= _ROUNDED for found, value in zip(seed0, PRINTED, strict=True))
    shown = all(without < _DEAD * with_shortcut and with_shortcut > 1 for without, with_shortcut in pairs)
    orders = [math.log10(b / a) for a, b in pairs]
    verdict: Verdict = "holds" if printed and shown else "does not hold"
    said = "holds in every seed" if shown else "does not hold in every seed"
    return Judgement(
        verdict=verdict,
        figure=f"seed 0 gives {seed0[0]:.1e} and {seed0[1]:.1e} (printed: {PRINTED[0]:.1e} and {PRINTED[1]:.1e}), "
        f"{orders[0]:.0f} orders of magnitude apart (printed: 7)",
        words=f"Over {len(pairs)} seeds {min(every[0]):.1e} to {max(every[0]):.1e} without and {min(every[1]):.1e} to "
        f"{max(every[1]):.1e} with the shortcut, {min(orders):.1f} to {max(orders):.1f} orders apart. What the "
        f"figures are to show, that the plain gradient dies and the residual one arrives, {said}.",
        numbers={
            "seed_0": list(seed0), "printed": list(PRINTED), "without": list(every[0]), "with": list(every[1]),
            "orders": orders, "printed_figures_come_out": printed, "plain_dies_and_residual_arrives": shown,
            "torch": torch.__version__,
        },
        parts=(
            Lines(
                series=(
                    Series(name="without shortcut", y=tuple(every[0])),
                    Series(name="with shortcut", y=tuple(every[1])),
                    Series(name="printed, without", y=(PRINTED[0],) * len(pairs)),
                    Series(name="printed, with", y=(PRINTED[1],) * len(pairs)),
                ),
                x="seed", log=True, title="Norm of the gradient of the input behind 40 tanh layers",
                note="How far the printed figures are from those of any seed.",
            ),
        ) if len(pairs) > 1 else (),
    )  # fmt: skip


@claim(
    "grad-40-tanh",
    source="001 (residual connections), its second program and the sentence behind it",
    statement="Through 40 tanh layers, 64 wide, batch 8, the norm of the input's gradient is 1.4e-06 without and "
    "2.6e+01 with the shortcut, seven orders of magnitude apart.",
    measurement="The document's program with its seed 0, and with 20 seeds.",
    criterion="Holds if seed 0 gives both printed figures within 5 % (they have two digits) and, in every one of 20 "
    "seeds, the gradient without the shortcut is below 1e-3 of that with it, which is above 1.",
)
def check(_bench: Bench) -> Judgement:
    """Twenty pairs."""
    return judged([pair(seed) for seed in range(SEEDS)])
