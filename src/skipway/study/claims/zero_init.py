"""Claim ``zero-init``: with the last layer of its branch at zero, a unit starts as the identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from skipway.models import create_model
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DocumentBlock", "departures", "judged", "units_of"]


class DocumentBlock(nn.Module):
    """The block of document 001 as printed: ``ReLU( x + BN·Conv·ReLU·BN·Conv(x) )``, its last gain zero.

    Args:
        channels: C.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )  # fmt: skip
        nn.init.zeros_(self.f[-1].weight)  # type: ignore[arg-type]  # a norm holds a tensor there

    def forward(self, x: Tensor) -> Tensor:
        """(N,C,H,W) to the same."""
        return torch.relu(x + self.f(x))


def units_of(name: str) -> list[tuple[nn.Module, int]]:
    """Units of a net that keep the shape, each with its channels."""
    return [
        (unit, unit.plan.in_width)
        for unit in create_model(name).stack.built_units()
        if not unit.plan.site.changes_shape
    ]


def departures(units: list[tuple[nn.Module, int]], seed: int = 0) -> dict[str, float]:
    """Largest entry of ``unit(x) − x``, for x of both signs and for x ≥ 0."""
    found = {"any x": 0.0, "x ≥ 0": 0.0}
    with seeded(seed), torch.no_grad():
        for unit, channels in units:
            x = torch.randn(4, channels, 8, 8)
            for name, given in (("any x", x), ("x ≥ 0", x.abs())):
                found[name] = max(found[name], float((unit(given) - given).abs().max()))
    return found


def judged(block: dict[str, float], preact: dict[str, float]) -> Judgement:
    """By the departure from the identity: of the document's block, and of full pre-activation.

    Args:
        block: of the document's block.
        preact: of the units of a net without anything behind the sum.
    """
    verdict: Verdict = "does not hold"
    condition = ""
    if block["any x"] == 0:
        verdict = "holds"
    elif block["x ≥ 0"] == 0:
        verdict, condition = "holds only if", "x ≥ 0, or nothing stands behind the sum"
        if preact["any x"] != 0:
            condition = "x ≥ 0"
    return Judgement(
        verdict=verdict, condition=condition,
        figure=f"unit(x) − x is {block['x ≥ 0']:.3g} for x ≥ 0 and up to {block['any x']:.3g} for x of both signs in "
        f"the document's block; {preact['any x']:.3g} for any x in full pre-activation",
        words="The document's block has a ReLU behind the sum, which cuts what is negative in x. In a net of such "
        "blocks the stem's ReLU makes the stream non-negative, so that the units there do start as the identity.",
        numbers={"document": block, "preact": preact},
    )  # fmt: skip


@claim(
    "zero-init",
    source="001 (residual connections), practical detail 2 and its first program",
    statement="With the last layer of the block initialised to zero, the block starts as an exact identity.",
    measurement="The largest entry of unit(x) − x at initialisation, for the block as printed and for the units of a "
    "20-layer pre-activation net.",
    criterion="Holds if it is exactly 0 for the document's block on x of both signs; holds only if x ≥ 0, if it is "
    "exactly 0 there and not for both signs.",
)
def check(_bench: Bench) -> Judgement:
    """The printed block, and a net."""
    with seeded(0):
        block: list[tuple[nn.Module, int]] = [(DocumentBlock(channels), channels) for channels in (8, 16)]
        units = units_of("resnet20@preact(zero_init=true)")
    return judged(departures(block), departures(units))
