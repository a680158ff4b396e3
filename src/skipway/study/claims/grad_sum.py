"""Claim ``grad-sum``: the derivative of x + F(x) is I + ∂F/∂x."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skipway.models import Unit, create_model
from skipway.parts import Heatmap
from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._measures import EXACT, Pass, jacobian, passes, seeded, smooth_branch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from skipway.models.unit import PlannedUnit

__all__ = ["distance", "judged", "leftover"]


def leftover(unit: PlannedUnit, x: Tensor) -> Tensor:
    """``∂unit/∂x − ∂F/∂x``, (S,S): by the claim the identity."""
    return jacobian(unit, x) - jacobian(unit.branches[0], x)


def distance(unit: PlannedUnit, x: Tensor) -> float:
    """Largest entry of ``∂unit/∂x − ∂F/∂x − I``, by its size."""
    found = leftover(unit, x)
    return float((found - torch.eye(len(found), dtype=found.dtype)).abs().max())


def judged(distances: Mapping[str, float], relu_behind: float) -> Judgement:
    """By the largest distance from the identity.

    Args:
        distances: of units x + F(x), by name.
        relu_behind: of the documents' own block, which has a ReLU behind the sum.
    """
    worst = max(distances, key=lambda name: distances[name])
    return Judgement(
        verdict="holds" if distances[worst] <= EXACT else "does not hold",
        figure=f"∂y/∂x − ∂F/∂x differs from I by at most {distances[worst]:.1e}, over {len(distances)} units in "
        "float64",
        words="The documents print blocks with a ReLU behind the sum: there the same difference is "
        f"{relu_behind:.2g}, since the derivative of the ReLU multiplies the whole.",
        numbers={"distance": dict(distances), "distance_relu_behind": relu_behind},
    )


@claim(
    "grad-sum",
    source="000 (why addition), sections 1 and 4; 001 (residual connections); 003, He et al. 2016, arXiv 1603.05027, "
    "equation 5",
    statement="With y = x + F(x) the derivative is ∂y/∂x = I + ∂F/∂x.",
    measurement="The whole Jacobian of a unit minus that of its branch, in float64, for units of nets and single ones.",
    criterion="Holds if every entry differs from the identity matrix by at most 1e-12, on every unit.",
)
def check(_bench: Bench) -> Judgement:
    """Units of three nets and one around a branch of linear layers."""
    units = _units()
    distances = {name: distance(unit, x) for name, (unit, x) in units.items()}
    with seeded(1):
        found = passes(create_model("resnet8", width=4).double(), torch.randn(2, 3, 4, 4).double())
    relu_behind = distance(found[0].unit, found[0].x)
    judgement = judged(distances, relu_behind)
    unit, x = units["linear layers"]
    rows = leftover(unit, x).tolist()
    shown = Heatmap(
        values=tuple(tuple(row) for row in rows), rows=tuple(str(k) for k in range(len(rows))),
        columns="entry of x", title="∂y/∂x − ∂F/∂x of a unit of linear layers", note="The identity matrix.",
    )  # fmt: skip
    return Judgement(
        verdict=judgement.verdict, figure=judgement.figure, words=judgement.words, numbers=judgement.numbers,
        parts=(shown,),
    )  # fmt: skip


def _units() -> dict[str, tuple[PlannedUnit, Tensor]]:
    with seeded(0):
        single = Unit(smooth_branch(4), "pre_norm").double()
        images = torch.randn(2, 3, 4, 4).double()
        tokens = torch.randint(0, 256, (1, 3))
        found: dict[str, tuple[PlannedUnit, Tensor]] = {"linear layers": (single, torch.randn(2, 4).double())}
        for name, width, batch in (
            ("resnet14@preact", 4, images), ("resnet14@relu_before_add", 4, images), ("gpt_nano", 16, tokens),
        ):  # fmt: skip
            net = create_model(name, width=width).double()
            kept: list[Pass] = [p for p in passes(net, batch) if p.keeps_shape]
            for k in (0, len(kept) - 1):
                found[f"{name} unit {k}"] = (kept[k].unit, kept[k].x)
    return found
