"""Multi-head self-attention as a branch, on PyTorch's fused kernel.

Shapes: N batch, T tokens, D width, A heads, E = D/A width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from skipway.blocks.block import Style, TokenBlock, check_slots
from skipway.blocks.rebuild import Rebuilding, run_through
from skipway.blocks.slot import Mode, Slots, chain, ops_of
from skipway.errors import SkipwayError
from skipway.form import Op

__all__ = ["Attention", "AttentionBlock"]

_HEAD_SLOTS = ("q", "k", "v")


@dataclass(frozen=True, kw_only=True)
class AttentionBlock(TokenBlock):
    """``W_O softmax(s·Q Kᵀ) V + b_O``: (N,T,D) to (N,T,D').

    Ports ``x`` (queries, and the rest unless given), ``k``, ``v`` and ``memory`` (a second argument for the slot ``v``,
    (N,A,T,E)). Slots ``start`` (on every port), ``q``, ``k``, ``v`` (per head), ``mixed`` (before W_O) and ``end``.

    Args:
        reads: width read.
        writes: width written.
        width: inner width D.
        heads: number A; divides `width`.
        causal: whether a token sees only itself and those before it.
        scale: s; None means 1/√E.
        emit_values: also return V, (N,A,T,E), for designs that carry it on.

    Raises:
        SkipwayError: the heads do not divide the width.
    """

    style: ClassVar[Style] = "token"
    ports: ClassVar[tuple[str, ...]] = ("x", "k", "v", "memory")
    width: int
    heads: int
    causal: bool = False
    scale: float | None = None
    emit_values: bool = False

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise SkipwayError(f"{self.heads} heads for width {self.width}", "a number of heads that divides the width")

    def slots(self) -> dict[str, int]:
        """Slots and widths."""
        head = self.width // self.heads
        return {"start": self.reads, "q": head, "k": head, "v": head, "mixed": self.width, "end": self.writes}

    def ops(self, slots: Slots, mode: Mode) -> tuple[Op, ...]:
        """Operations in order of execution, those on queries, keys and values left out."""
        start, mixed, end = (ops_of(slots.get(name, ()), mode) for name in ("start", "mixed", "end"))
        linear = Op("weight", "linear")
        return (*start, linear, Op("weight", "attention"), *mixed, linear, *end)

    def build(self, slots: Slots) -> nn.Module:
        """The branch."""
        check_slots(self, slots)
        return Attention(self, slots)

    def resized(self, *, in_width: int, out_width: int) -> AttentionBlock:
        """Other outer widths; the inner width stays."""
        return replace(self, reads=in_width, writes=out_width)


class Attention(Rebuilding, nn.Module):
    """The module of `AttentionBlock`; queries, keys and values from one fused linear layer.

    Args:
        block: its plan.
        slots: what fills the slots.
    """

    def __init__(self, block: AttentionBlock, slots: Slots) -> None:
        super().__init__()
        self.heads, self.causal, self.scale, self.emit_values = (
            block.heads,
            block.causal,
            block.scale,
            block.emit_values,
        )
        widths = block.slots()

        def fill(name: str, fresh: bool = True) -> nn.Module | None:
            return chain(slots.get(name, ()), widths[name], "NTD", fresh=fresh)

        self.start = fill("start", fresh=False)
        self.qkv = nn.Linear(block.reads, 3 * block.width)
        self.q, self.k, self.v = fill("q"), fill("k"), fill("v")
        self.mixed = fill("mixed")
        self.out = nn.Linear(block.width, block.writes)
        self.end = fill("end")

    def forward(
        self, x: Tensor, k: Tensor | None = None, v: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend.

        Args:
            x: (N,T,D), read by the queries and by each port that is not given.
            k: (N,T,D), read by the keys.
            v: (N,T,D), read by the values.
            memory: (N,A,T,E), given to the slot ``v`` beside V.

        Returns:
            (N,T,D'); with `emit_values` also V.
        """
        query, key, value = self._project(x, k, v)
        query = query if self.q is None else self.q(query)
        key = key if self.k is None else self.k(key)
        if self.v is not None:
            value = self.v(value) if memory is None else self.v(value, memory)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal, scale=self.scale)
        y = y.transpose(1, 2).flatten(2)
        y = self.out(y if self.mixed is None else self.mixed(y))
        y = y if self.end is None else self.end(y)
        return (y, value) if self.emit_values else y

    def _project(self, x: Tensor, k: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if k is None and v is None:
            n, t, _ = x.shape
            modules = [self.qkv] if self.start is None else [self.start, self.qkv]
            heads_in = run_through(modules, x, rebuild=self.rebuild).view(n, t, 3, self.heads, -1)
            query, key, value = heads_in.permute(2, 0, 3, 1, 4).unbind(0)
            return query, key, value
        sources = [x if port is None else port for port in (x, k, v)]
        weights = zip(sources, self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True)
        heads: list[Tensor] = []
        for source, weight, bias in weights:
            read = source if self.start is None else self.start(source)
            heads.append(F.linear(read, weight, bias).view(*read.shape[:2], self.heads, -1).transpose(1, 2))
        return heads[0], heads[1], heads[2]

    def matrices(self) -> dict[str, Tensor]:
        """Weight matrices by role, (rows, columns), as views: ``q``, ``k``, ``v``, ``out``."""
        q, k, v = self.qkv.weight.chunk(3)
        return {"q": q, "k": k, "v": v, "out": self.out.weight}
