"""Claim ``relu-before-add``: behind a ReLU in front of the addition, the stream can only grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skipway.models import create_model
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._measures import passes, seeded, train_on_digits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from skipway.models import Net

__all__ = ["judged", "least_growth", "measured"]


def least_growth(net: Net, batch: Tensor) -> list[float]:
    """Smallest entry of ``x' − x`` of every unit that keeps the shape."""
    return [float((p.out - p.x).min()) for p in passes(net, batch) if p.keeps_shape]


def measured(net: Net, batch: Tensor, steps: int) -> dict[str, list[float]]:
    """Least growth at the start and behind a few steps on digits, by unit."""
    at_start = least_growth(net, batch)
    train_on_digits(net, steps=steps)
    return {"at the start": at_start, f"behind {steps} steps": least_growth(net, batch)}


def judged(found: Mapping[str, Sequence[float]], contrast: float) -> Judgement:
    """By the smallest entry anywhere.

    Args:
        found: smallest entry by unit, at each time.
        contrast: the same of a full pre-activation net, at the start.
    """
    least = min(min(values) for values in found.values())
    return Judgement(
        verdict="holds" if least >= 0 else "does not hold",
        figure=f"the smallest entry of x' − x over all units and times is {least:.3g}",
        words=f"Full pre-activation, for comparison: {contrast:.3g}. The published price of a branch that is never "
        "negative: 7.84 % test error against 6.61 % at 110 layers.",
        numbers={"least_growth": {name: list(values) for name, values in found.items()}, "preact": contrast},
        parts=(
            Lines(
                series=tuple(Series(name=name, y=tuple(values)) for name, values in found.items()),
                title="Smallest entry of x' − x, by unit", note="Never below 0.",
            ),
        ),
    )  # fmt: skip


@claim(
    "relu-before-add",
    source="003, 'ReLU before addition'; He et al. 2016, arXiv 1603.05027, section 4.1",
    statement="With a ReLU in front of the addition the branch is never negative, so that the stream can only grow.",
    measurement="The smallest entry of x' − x of every unit that keeps the shape, in a 20-layer net at the start and "
    "behind 30 training steps.",
    criterion="Holds if that entry is at least 0, exactly, for every unit at both times.",
)
def check(_bench: Bench) -> Judgement:
    """A 20-layer net on digits."""
    with seeded(0):
        batch = torch.randn(16, 1, 8, 8)
        net = create_model("resnet20@relu_before_add", in_channels=1, width=8)
        other = create_model("resnet20@preact", in_channels=1, width=8)
        return judged(measured(net, batch, 30), min(least_growth(other, batch)))
