"""What a hand-made case is: a model, a batch, and the right answer.

Shapes: N batch, D width (16), C channels, H height, W width, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["WIDTH", "Block", "Branch", "Case", "Collection", "Stack", "vectors"]

WIDTH = 16
Join = Callable[["Block", Tensor], Tensor]


def vectors() -> Tensor:
    """Four random vectors (N, D)."""
    return torch.randn(4, WIDTH)


class Branch(nn.Module):
    """F: linear, ReLU, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(x)))


class Block(nn.Module):
    """Everything that a join may want: a branch, a norm, a gate, a gain, dropout, and the join itself."""

    def __init__(self, join: Join) -> None:
        super().__init__()
        self.branch, self.norm, self.gate = Branch(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gain, self.drop = nn.Parameter(torch.full((WIDTH,), 0.5)), nn.Dropout(0.1)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.join(self, x)


class Stack(nn.Module):
    """Three blocks and a head."""

    def __init__(self, join: Join, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(join) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass(frozen=True)
class Case:
    """One case.

    Args:
        name: what is unusual about it.
        build: makes the model.
        batch: makes what it is called with.
        units: number of merges of kind ``unit``; None where opinions may differ.
        shortcut, after: histograms of h and f (see `zoo.compare`), or None where they are not judged.
        also: at least so many merges of other kinds, ``{"injection": 2}``; kinds not named are not judged.
        listed: at least so many joins must be reported: as units, as kind ``merge``, or in `unexplained`.
        train: whether to inspect it in train mode.
        proved: whether a proof is possible (on the meta device there are no numbers).
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any] = vectors
    units: int | None = None
    shortcut: str | None = None
    after: str | None = None
    also: Mapping[str, int] = field(default_factory=dict)
    listed: int = 0
    train: bool = False
    proved: bool = True


@dataclass
class Collection:
    """Cases by name, filled by two decorators."""

    cases: dict[str, Case] = field(default_factory=dict)

    def join(self, name: str, units: int | None = 3, **truth: Any) -> Callable[[Join], Join]:
        """Register a stack of three blocks that join x and F in the decorated way."""

        def register(function: Join) -> Join:
            self._keep(Case(name, lambda: Stack(function), units=units, **truth))
            return function

        return register

    def model(self, name: str, units: int | None, **truth: Any) -> Callable[[Any], Any]:
        """Register a module class, or a function that returns a module."""

        def register(build: Any) -> Any:
            self._keep(Case(name, build, units=units, **truth))
            return build

        return register

    def _keep(self, case: Case) -> None:
        if case.name in self.cases:
            raise AssertionError(f"two cases are named {case.name!r}")
        self.cases[case.name] = case
