"""Claim ``product-derivative``: the derivative that the document gives for the product of stream and branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skipway.models import Unit
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import EXACT, jacobian, seeded, smooth_branch

if TYPE_CHECKING:
    from torch import Tensor

    from skipway.models.unit import PlannedUnit

__all__ = ["distances", "judged"]


def distances(unit: PlannedUnit, x: Tensor) -> dict[str, float]:
    """How far autograd is from each formula, relative to the largest entry of the Jacobian, (S,S).

    Args:
        unit: x ⊙ F(x).
        x: (N,D).
    """
    branch = unit.branches[0]
    whole, inner = jacobian(unit, x), jacobian(branch, x)
    with torch.no_grad():
        f = branch(x).flatten()
    document = x.flatten()[:, None] * inner  # its second term is f × 0
    size = float(whole.abs().max())
    return {
        "document": float((whole - document).abs().max()) / size,
        "product_rule": float((whole - document - torch.diag(f)).abs().max()) / size,
    }


def judged(found: dict[str, float]) -> Judgement:
    """By the distance of autograd from the document's formula."""
    verdict: Verdict = "holds" if found["document"] <= EXACT else "does not hold"
    right = "is exact" if found["product_rule"] <= EXACT else "does not fit either"
    return Judgement(
        verdict=verdict,
        figure=f"autograd differs from the document's formula by {found['document']:.2g} of the largest entry, from "
        f"x·f′ + f by {found['product_rule']:.1e}",
        words=f"The product rule, ∂f/∂x × identity + f × 1, {right}: the derivative of the identity is 1, not 0.",
        numbers=found,
    )


@claim(
    "product-derivative",
    source="000 (why addition), section 3, variant 2",
    statement="For out = f(x) × x the derivative is ∂L/∂x = ∂L/∂y × (∂f/∂x × identity + f × 0).",
    measurement="The Jacobian of a unit x ⊙ F(x) by autograd in float64, against that formula and the product rule.",
    criterion="Holds if no entry differs from the document's formula by more than 1e-12 of the largest entry.",
)
def check(_bench: Bench) -> Judgement:
    """One unit."""
    with seeded(0):
        unit = Unit(smooth_branch(6), "multiply(plus_one=false)", norm="none", act="none")
        return judged(distances(unit, torch.randn(3, 6).double()))
