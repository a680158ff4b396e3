"""Claim ``grad-example``: the documents' numerical example of a gradient with and without the shortcut."""

from __future__ import annotations

import torch
from torch import nn

from skipway.models import Unit
from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._measures import EXACT, seeded

__all__ = ["DL_DF", "PRINTED", "gradient", "judged"]

DL_DF = 0.001
DF_DX = 0.01
PRINTED = {"without": 0.00001, "with": 0.00101, "ratio": 101.0}


def gradient(design: str, slope: float = DF_DX) -> float:
    """∂L/∂x by autograd, for a unit whose branch is ``slope · x`` and a loss with ∂L/∂y = 0.001.

    Args:
        design: of the unit.
        slope: ∂f/∂x.
    """
    with seeded(0):  # making a layer draws numbers
        branch = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        branch.weight.fill_(slope)
    unit = Unit(branch, design, norm="none", act="none")
    x = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad((DL_DF * unit(x)).sum(), x)
    return float(found)


def judged(without: float, with_shortcut: float) -> Judgement:
    """By the relative distance from the figures of the document."""
    found = {"without": without, "with": with_shortcut, "ratio": with_shortcut / without}
    apart = max(abs(found[name] / value - 1) for name, value in PRINTED.items())
    return Judgement(
        verdict="holds" if apart <= EXACT else "does not hold",
        figure=f"∂L/∂x = {without:.5f} without and {with_shortcut:.5f} with the shortcut: {found['ratio']:.4g} times",
        words="The factor is 1 + 1/(∂f/∂x): it says how small the branch's slope was chosen, nothing about a net. "
        "The document rounds 0.00101 to 0.001 in a comment.",
        numbers={**found, "relative_distance": apart},
    )


@claim(
    "grad-example",
    source="000 (why addition), section 4, numerical example",
    statement="With ∂L/∂f = 0.001 and ∂f/∂x = 0.01 the gradient is 0.00001 without the shortcut and 0.00101 with it, "
    "about 101 times as much.",
    measurement="Autograd through a plain and a residual unit whose branch has that slope, in float64.",
    criterion="Holds if the two gradients and their ratio are 0.00001, 0.00101 and 101 to 1e-12, relative.",
)
def check(_bench: Bench) -> Judgement:
    """Two units of one weight."""
    return judged(gradient("plain"), gradient("post_act"))
