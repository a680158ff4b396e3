"""Branches of linear layers: one layer with its activation, or the two-layer MLP of a transformer.

Shapes: N batch, T tokens, D width; any tensor whose last dimension is D will do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from skipway.blocks.block import SequentialBranch, Style, TokenBlock, check_slots
from skipway.blocks.slot import Mode, Slots, activation, add_parts, ops_of
from skipway.form import Op

__all__ = ["LayerBlock", "MLPBlock"]

_LINEAR = Op("weight", "linear")


@dataclass(frozen=True, kw_only=True)
class _LinearBlock(TokenBlock):
    """What the linear blocks share."""

    act: str


@dataclass(frozen=True, kw_only=True)
class LayerBlock(_LinearBlock):
    """``φ(W x + b)``: (…,D) to (…,D'). Slots ``start`` and ``end``; φ stands before ``end``.

    Args:
        reads: width read.
        writes: width written.
        act: activation φ, e.g. ``"tanh"``.
    """

    style: ClassVar[Style] = "layer"

    def slots(self) -> dict[str, int]:
        """Slots and widths."""
        return {"start": self.reads, "end": self.writes}

    def ops(self, slots: Slots, mode: Mode) -> tuple[Op, ...]:
        """Operations in order of execution."""
        start, end = (ops_of(slots.get(name, ()), mode) for name in ("start", "end"))
        return (*start, _LINEAR, *ops_of(activation(self.act), mode), *end)

    def build(self, slots: Slots) -> nn.Module:
        """The branch: ``linear1``, ``act1``."""
        check_slots(self, slots)
        branch = SequentialBranch()
        add_parts(branch, slots.get("start", ()), self.reads, "NTD", fresh=False)
        branch.add_module("linear1", nn.Linear(self.reads, self.writes))
        add_parts(branch, activation(self.act) + slots.get("end", ()), self.writes, "NTD", fresh=True)
        return branch

    def resized(self, *, in_width: int, out_width: int) -> LayerBlock:
        """Other widths."""
        return replace(self, reads=in_width, writes=out_width)


@dataclass(frozen=True, kw_only=True)
class MLPBlock(_LinearBlock):
    """``W₂ φ(W₁ x + b₁) + b₂``: (…,D) to (…,D'). Slots ``start``, ``hidden`` (behind φ) and ``end``.

    Args:
        reads: width read.
        writes: width written.
        hidden: inner width.
        act: activation φ: ``"gelu"``, ``"relu"``, ``"tanh"``.
    """

    style: ClassVar[Style] = "token"
    hidden: int

    def slots(self) -> dict[str, int]:
        """Slots and widths."""
        return {"start": self.reads, "hidden": self.hidden, "end": self.writes}

    def ops(self, slots: Slots, mode: Mode) -> tuple[Op, ...]:
        """Operations in order of execution."""
        start, hidden, end = (ops_of(slots.get(name, ()), mode) for name in ("start", "hidden", "end"))
        return (*start, _LINEAR, *ops_of(activation(self.act), mode), *hidden, _LINEAR, *end)

    def build(self, slots: Slots) -> nn.Module:
        """The branch: ``linear1``, ``act1``, ``linear2``."""
        check_slots(self, slots)
        branch = SequentialBranch()
        add_parts(branch, slots.get("start", ()), self.reads, "NTD", fresh=False)
        branch.add_module("linear1", nn.Linear(self.reads, self.hidden))
        add_parts(branch, activation(self.act) + slots.get("hidden", ()), self.hidden, "NTD", fresh=True)
        branch.add_module("linear2", nn.Linear(self.hidden, self.writes))
        add_parts(branch, slots.get("end", ()), self.writes, "NTD", fresh=True)
        return branch

    def resized(self, *, in_width: int, out_width: int) -> MLPBlock:
        """Other outer widths; the hidden width stays."""
        return replace(self, reads=in_width, writes=out_width)
