"""Marks on the operands of a join, and what is done to the gradient that comes by at one.

Shapes: B gradients carried together, one a row; at a mark the gradient has the operand's shape behind B.

A mark is the identity forward. Backward it hands the gradient to whatever `Switch.turn` holds at that moment, so that
one forward run serves every kind of backward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Chosen", "NotCarriedError", "Shift", "Site", "Switch", "Turn", "mark"]


class NotCarriedError(RuntimeError):
    """Gradients that were carried together arrived at a mark as one: an operation has lost their dimension."""


class Turn(ABC):
    """What happens to a gradient at a mark."""

    @abstractmethod
    def one(self, gradient: torch.Tensor, site: Site) -> torch.Tensor:
        """A single gradient, of the operand's shape."""

    @abstractmethod
    def many(self, gradients: torch.Tensor, site: Site) -> torch.Tensor:
        """Gradients that are carried together, (B, …)."""


class Switch:
    """Says what all marks of a run do; None lets every gradient pass."""

    def __init__(self) -> None:
        self.turn: Turn | None = None
        self.together = False


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A mark's place: which of all marks, at which unit, on its shortcut or on its branch."""

    number: int
    unit: int
    shortcut: bool
    switch: Switch


def mark(operand: torch.Tensor, site: Site) -> torch.Tensor:
    """The same tensor, its gradient handed to the switch of `site`."""
    marked: torch.Tensor = _Mark.apply(operand, site)
    return marked


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(operand: torch.Tensor, _site: Site) -> torch.Tensor:
        return operand.view_as(operand)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  # PyTorch's signature
        ctx.site = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        site: Site = ctx.site
        switch, (gradient,) = site.switch, gradients
        if switch.turn is None:
            return gradient, None
        if switch.together:
            return _Together.apply(gradient, site), None
        return switch.turn.one(gradient, site), None


class _Together(torch.autograd.Function):
    """Reaches the dimension of the carried gradients, which inside `torch.func.vmap` only a vmap rule can see.

    The older vmap behind ``is_grads_batched`` never calls the rule: everything would stay at degree 0, and the sum over
    the degrees would still be right.
    """

    @staticmethod
    def forward(gradient: torch.Tensor, _site: Site) -> torch.Tensor:
        if gradient.any():
            raise NotCarriedError("an operation between two joins gives one gradient for all that are carried together")
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def vmap(
        info: Any,  # noqa: ARG004  # PyTorch's signature
        in_dims: tuple[int | None, ...],
        gradients: torch.Tensor,
        site: Site,
    ) -> tuple[torch.Tensor, int]:
        turn, at = site.switch.turn, in_dims[0]
        if turn is None or at is None:
            raise NotCarriedError("a mark was reached without gradients that are carried together")
        return turn.many(gradients.movedim(at, 0), site), 0


class Shift(Turn):
    """Into a branch, what went through k branches becomes what goes through k + 1.

    The degrees are carried a few at a time: each mark keeps the highest of one lot, which is the one before the lowest
    of the next.

    Args:
        gathers: whether the last row of the last lot stands for that degree and all above.
    """

    def __init__(self, *, gathers: bool) -> None:
        self._gathers, self.last = gathers, False
        self._kept: dict[int, torch.Tensor] = {}

    def one(self, gradient: torch.Tensor, site: Site) -> torch.Tensor:
        """The degree before, which the mark has kept from the last pass."""
        if site.shortcut:
            return gradient
        before = self._kept.pop(site.number, None)
        if not self.last:
            self._kept[site.number] = gradient.detach()
        elif self._gathers:
            return gradient if before is None else gradient + before
        return torch.zeros_like(gradient) if before is None else before

    def many(self, gradients: torch.Tensor, site: Site) -> torch.Tensor:
        """Every row one further, the first from the lot before."""
        if site.shortcut:
            return gradients
        before = self._kept.pop(site.number, None)
        first = torch.zeros_like(gradients[:1]) if before is None else before.unsqueeze(0)
        rows = torch.cat([first, gradients[:-1]])
        if not self.last:
            self._kept[site.number] = gradients[-1].clone()
        elif self._gathers:
            rows[-1] += gradients[-1]
        return rows


class Chosen(Turn):
    """One path: at a chosen unit only the branch hands the gradient on, at every other only the shortcut.

    Args:
        rows: the units chosen, a set for each gradient that is carried.
    """

    def __init__(self, rows: Sequence[frozenset[int]]) -> None:
        self._rows = rows

    def one(self, gradient: torch.Tensor, site: Site) -> torch.Tensor:
        """All or nothing."""
        return gradient if self._passes(site)[0] else torch.zeros_like(gradient)

    def many(self, gradients: torch.Tensor, site: Site) -> torch.Tensor:
        """All or nothing, row by row."""
        passes = torch.tensor(self._passes(site), device=gradients.device)
        return torch.where(passes.view(-1, *[1] * (gradients.dim() - 1)), gradients, gradients.new_zeros(()))

    def _passes(self, site: Site) -> list[bool]:
        return [(site.unit in row) != site.shortcut for row in self._rows]
