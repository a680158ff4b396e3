"""Units whose shortcut and branch do not fit: what is said, and what mends it.

Shapes: N batch, C channels, H and W image, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from skipway.errors import ShapeMismatchError
from skipway.models import Unit
from skipway.study.claims._measures import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["Mended", "Refusal", "mended", "refusal"]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What is said of a unit that does not fit.

    Args:
        text: of the error; empty where none was raised.
        names: what it was asked to name, each with whether it does.
    """

    text: str
    names: dict[str, bool]

    @property
    def clear(self) -> bool:
        """Whether it was refused, naming everything."""
        return bool(self.text) and all(self.names.values())


@dataclass(frozen=True, kw_only=True)
class Mended:
    """A unit with something on its shortcut, trained for a while.

    Args:
        before, behind: mean square error before and behind training.
        weights: numbers on the shortcut that are trained.
        moved: largest change of one of them; 0 without any.
    """

    before: float
    behind: float
    weights: int
    moved: float

    @property
    def trains(self) -> bool:
        """Whether at least half of the error is gone, and what is on the shortcut takes part."""
        return self.behind <= self.before / 2 and (self.weights == 0 or self.moved > 0)


def refusal(make: Callable[[], nn.Module], *names: str) -> Refusal:
    """Build a unit that does not fit.

    Args:
        make: builds it.
        names: what the error is to name.
    """
    text = ""
    try:
        make()
    except ShapeMismatchError as error:
        text = str(error)
    return Refusal(text=text, names={name: name in text for name in names})


def mended(branch: nn.Module, shortcut: nn.Module, x: Tensor, *, steps: int = 60) -> Mended:
    """Train a unit on one batch of random targets, by Adam.

    Args:
        branch: of the unit; changes the shape.
        shortcut: what makes x fit.
        x: (N,C,H,W) or (N,D).
        steps: of the optimiser.
    """
    unit = Unit(branch, "post_act", shortcut=shortcut, act="none")
    with seeded(1), torch.no_grad():
        target = torch.randn(unit(x).shape)
    start = [p.detach().clone() for p in shortcut.parameters()]
    optimizer = torch.optim.Adam(unit.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps + 1):
        loss = (unit(x) - target).square().mean()
        losses.append(float(loss.detach()))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    moved = [float((p.detach() - s).abs().max()) for p, s in zip(shortcut.parameters(), start, strict=True)]
    return Mended(
        before=losses[0], behind=losses[-1], weights=sum(s.numel() for s in start), moved=max(moved, default=0.0)
    )
