"""Claim ``lower-bound``: how far 1 − |∂f/∂x| keeps the gradient of a residual unit from 0."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import torch

from skipway.models import create_model
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import jacobian, passes, seeded, train_on_digits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from skipway.models import Net

__all__ = ["Bound", "bounds", "judged"]

# Singular values of matrices of some hundred rows are exact to about 1e-14 of the largest.
_ROUNDING: Final = 1e-10


@dataclass(frozen=True, kw_only=True)
class Bound:
    """One unit at one point.

    Args:
        branch: largest singular value of ``J = ∂F/∂x``.
        least: smallest singular value of ``∂y/∂x``: by what the gradient is shortened at worst.
    """

    branch: float
    least: float

    @property
    def promised(self) -> bool:
        """Whether ``1 − ‖J‖`` is above 0, so that the document's bound says something."""
        return self.branch < 1

    @property
    def kept(self) -> bool:
        """Whether the unit keeps the bound."""
        return self.least >= 1 - self.branch - _ROUNDING * (1 + self.branch)


def bounds(net: Net, batch: Tensor) -> list[Bound]:
    """Of every unit that keeps the shape, where the batch takes it."""
    found = []
    for passed in passes(net, batch):
        if passed.keeps_shape:
            whole = torch.linalg.svdvals(jacobian(passed.unit, passed.x))
            branch = torch.linalg.svdvals(jacobian(passed.unit.branches[0], passed.x))
            found.append(Bound(branch=float(branch[0]), least=float(whole[-1])))
    return found


def judged(found: Mapping[str, Sequence[Bound]]) -> Judgement:
    """By whether the bound is kept, and how often it promises anything."""
    every = [one for of_net in found.values() for one in of_net]
    promised = [one for one in every if one.promised]
    verdict: Verdict = "holds"
    condition = ""
    if not all(one.kept for one in every):
        verdict = "does not hold"
    elif len(promised) < len(every):
        verdict, condition = "holds only if", "‖∂F/∂x‖ < 1: elsewhere the bound is below 0 and promises nothing"
    shares = {name: sum(one.promised for one in of_net) / len(of_net) for name, of_net in found.items()}
    least = min(one.least for one in every)
    return Judgement(
        verdict=verdict, condition=condition,
        figure=f"‖∂F/∂x‖ < 1 in {len(promised)} of {len(every)} units; the smallest singular value of ∂y/∂x over all "
        f"of them is {least:.2g}",
        words="Share of units where the bound says something: "
        + ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
        + ". For numbers |1 + f′| ≥ 1 − |f′| is true, and above 0 only if |f′| < 1; in many dimensions one direction "
        "in which the branch undoes the stream is enough.",
        numbers={
            "share_below_1": shares, "least_singular_value": least, "largest_norm": max(one.branch for one in every),
            "units": {name: [asdict(one) for one in of_net] for name, of_net in found.items()},
        },
        parts=(
            Lines(
                series=tuple(
                    Series(name=name, x=tuple(o.branch for o in ordered), y=tuple(o.least for o in ordered))
                    for name, of_net in found.items()
                    if (ordered := sorted(of_net, key=lambda one: one.branch))
                ),
                x="‖∂F/∂x‖", title="Smallest singular value of ∂y/∂x, by unit",
                note="Left of 1 the bound 1 − ‖∂F/∂x‖ keeps it above 0; right of 1 nothing does.",
            ),
        ),
    )  # fmt: skip


@claim(
    "lower-bound",
    source="000 (why addition), section 4",
    statement="Even if |∂f/∂x| < 1, |∂y/∂x| ≥ 1 − |∂f/∂x| > 0 is guaranteed: the gradient is always passed on.",
    measurement="The smallest singular value of ∂y/∂x and the largest of ∂F/∂x, in float64, over the units of a "
    "convolutional net and of one of tanh layers, at random weights and behind 100 training steps on digits.",
    criterion="Does not hold if a unit falls below 1 − ‖∂F/∂x‖ by more than rounding (1e-10); holds if ‖∂F/∂x‖ < 1 "
    "in every unit; holds only if ‖∂F/∂x‖ < 1, where the bound is kept but is not above 0 for all units.",
)
def check(_bench: Bench) -> Judgement:
    """Two nets, at both times."""
    found: dict[str, list[Bound]] = {}
    for name, flat in (("resnet14@preact", False), ("mlp16", True)):
        with seeded(0):
            net = create_model(name, width=16 if flat else 4, in_channels=None if flat else 1).double()
            batch = torch.randn(4, 64) if flat else torch.randn(2, 1, 4, 4)
            found[f"{name}, random"] = bounds(net, batch.double())
            train_on_digits(net, steps=100, flat=flat, batch_size=32, lr=0.05)
            found[f"{name}, trained"] = bounds(net, batch.double())
    return judged(found)
