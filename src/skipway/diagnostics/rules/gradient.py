"""Rules ``gradient-vanishing`` and ``gradient-exploding``: the gradient along the stream, first against last."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.profile import Curve, gradient_curve
from skipway.diagnostics.rules._rule import RULES, Evidence, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding

__all__ = ["exploding", "vanishing"]

# Over the 169 public models of the test zoo, freshly initialised and in train mode, the ratio of the first unit's
# gradient to the last's lies between 0.02 and 2,500, but for two whose gradient drops at one place and not steadily.
SMALLEST_RATIO: Final = 1e-3
LARGEST_RATIO: Final = 1e4
_FEWEST_POINTS: Final = 6
_SHOWN: Final = 7
_SOURCE: Final = "He et al. 2016, arXiv 1603.05027, eq. 5; thresholds: spread over 169 public models at initialisation"


def _program(unit: str) -> str:
    return f"""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        nn.init.zeros_(self.branch[-1].weight)

    def forward(self, x):
        return {unit}


model = nn.Sequential(nn.Linear(16, 16), *[Block() for _ in range(40)])
batch = torch.randn(4, 16)
"""


@rule(
    "gradient-vanishing",
    severity="warning",
    summary="The gradient shrinks on its way back to the first units.",
    explanation="The norm of the gradient with respect to the stream at the first unit is under 1/1000 of that "
    "at the last,"
    " and it falls steadily. A ratio alone is a symptom: look for its cause (scaled or gated shortcuts, norms on the"
    " path, a missing shortcut).",
    fix="make the shortcut an identity and put norm and activation into the branch (pre-activation)",
    source=_SOURCE,
    faulty=_program("0.7 * x + self.branch(x)"),
    healthy=_program("x + self.branch(x)"),
    needs=("signal",),
    symptom=True,
)
def vanishing(evidence: Evidence) -> Iterator[Finding]:
    """Fire when the first gradient is far below the last one and most steps go down."""
    curve = gradient_curve(evidence.units, evidence.layers)
    if curve is None or len(curve.values) < _FEWEST_POINTS or curve.ratio >= SMALLEST_RATIO or not curve.falls_back:
        return
    yield _finding(
        "gradient-vanishing", curve, f"the gradient falls to {curve.ratio:.2g} of itself on its way to the first"
    )


@rule(
    "gradient-exploding",
    severity="warning",
    summary="The gradient grows on its way back to the first units.",
    explanation="The norm of the gradient with respect to the stream at the first unit is over 10,000 times that at the"
    " last, and it grows steadily. Common causes: branches at scale 1 without normalisation, λ > 1 on the shortcut.",
    fix="scale the branches down (zero-initialise their last layer or norm gain, 1/√L, Fixup) or normalise inside them",
    source=_SOURCE,
    faulty=_program("1.5 * x + self.branch(x)"),
    healthy=_program("x + self.branch(x)"),
    needs=("signal",),
    symptom=True,
)
def exploding(evidence: Evidence) -> Iterator[Finding]:
    """Fire when the first gradient is far above the last one and most steps go up."""
    curve = gradient_curve(evidence.units, evidence.layers)
    if curve is None or len(curve.values) < _FEWEST_POINTS or curve.ratio <= LARGEST_RATIO or not curve.grows_back:
        return
    yield _finding("gradient-exploding", curve, f"the gradient grows {curve.ratio:.2g}-fold on its way to the first")


def _finding(rule_id: str, curve: Curve, what: str) -> Finding:
    return RULES[rule_id].finding(
        curve.steepest_path,
        f"{what} {curve.what}; {math.exp(-curve.slope):.3g} per {curve.what}",
        {
            "first_over_last": curve.ratio,
            "first": curve.values[0],
            "last": curve.values[-1],
            f"{curve.what}s": len(curve.values),
            "slope_per_step": -curve.slope,
            "steepest_at": curve.steepest_path,
            "steepest_factor": curve.steepest_factor,
            "curve": _sampled(curve.values),
        },
        fix=None if curve.what == "unit" else "give the layers shortcuts: x + layer(x)",
    )


def _sampled(values: Sequence[float]) -> str:
    """The curve in at most `_SHOWN` numbers, first and last among them."""
    count = min(len(values), _SHOWN)
    places = [round(k * (len(values) - 1) / max(count - 1, 1)) for k in range(count)]
    return " ".join(f"{values[k]:.2g}" for k in places)
