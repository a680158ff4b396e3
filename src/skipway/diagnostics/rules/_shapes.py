"""Two shapes that should meet: which dimension holds channels, by what stride they differ, what layer fits them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipway.trace import ops

if TYPE_CHECKING:
    from skipway.units.links import Links

__all__ = ["Misfit", "broadcast", "misfit"]

Shape = tuple[int, ...]


def broadcast(shapes: list[Shape]) -> Shape | None:
    """The shape that shapes broadcast to; None if they do not."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    out = []
    for sizes in zip(*padded, strict=True):
        larger = {s for s in sizes if s != 1}
        if len(larger) > 1:
            return None
        out.append(next(iter(larger), 1))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Misfit:
    """How a shortcut's shape differs from its branch's.

    Args:
        channels: width of the shortcut and of the branch.
        stride: by what the shortcut has to be subsampled, 1 for nothing; 0 where no stride does it.
        rounds: whether the sizes differ by one, as where one side rounds down and the other up.
        grows: by what the branch is larger, 1 for nothing.
        spatial: number of spatial dimensions, 0 for tokens and vectors.
    """

    channels: tuple[int, int]
    stride: int
    rounds: bool
    grows: int
    spatial: int

    def layer(self) -> str:
        """The layer for the shortcut that makes it fit, spelled out."""
        a, b = self.channels
        if self.spatial == 0:
            return f"nn.Linear({a}, {b}, bias=False)"
        d = self.spatial
        stride = f", stride={self.stride}" if self.stride > 1 else ""
        convolution = f"nn.Conv{d}d({a}, {b}, kernel_size=1{stride}, bias=False)"
        if self.grows > 1:
            up = f"nn.Upsample(scale_factor={self.grows})"
            return up if a == b else f"nn.Sequential({up}, {convolution})"
        return convolution


def misfit(shortcut: Shape, branch: Shape, branch_node: int, links: Links) -> Misfit | None:
    """How two shapes differ, None where no layer on the shortcut would help (other rank, other batch)."""
    if len(shortcut) != len(branch) or len(shortcut) < 2 or shortcut[0] != branch[0]:
        return None
    at = _channel_dimension(branch_node, len(branch), links)
    spatial = len(branch) - 2 if at == 1 and len(branch) > 2 else 0
    channels = (shortcut[at], branch[at])
    sizes = [(a, b) for d, (a, b) in enumerate(zip(shortcut, branch, strict=True)) if d not in (0, at)]
    if spatial == 0:
        return Misfit(channels, 1, rounds=False, grows=1, spatial=0) if all(a == b for a, b in sizes) else None
    if all(a == b for a, b in sizes):
        return Misfit(channels, 1, rounds=False, grows=1, spatial=spatial)
    if any(abs(a - b) == 1 for a, b in sizes) and all(abs(a - b) <= 1 for a, b in sizes):
        return Misfit(channels, 0, rounds=True, grows=1, spatial=spatial)
    down = {round(a / b) for a, b in sizes}
    if len(down) == 1 and (stride := down.pop()) > 1 and all(math.ceil(a / stride) == b for a, b in sizes):
        return Misfit(channels, stride, rounds=False, grows=1, spatial=spatial)
    up = {b / a for a, b in sizes}
    if len(up) == 1 and (factor := up.pop()) > 1 and factor == int(factor):
        return Misfit(channels, 1, rounds=False, grows=int(factor), spatial=spatial)
    return Misfit(channels, 0, rounds=False, grows=1, spatial=spatial)


def _channel_dimension(i: int, rank: int, links: Links) -> int:
    """Where the channels of a value lie: at 1 behind a convolution, at the end behind a linear layer."""
    nodes = links.nodes
    bits = links.ancestors[i] | 1 << i
    while bits:
        j = bits.bit_length() - 1
        bits ^= 1 << j
        if nodes[j].op in ops.CONVOLUTION:
            return 1
        if nodes[j].op in ops.MATMUL or nodes[j].op == "native_layer_norm":
            return rank - 1
        if nodes[j].op in ops.NORM:
            return 1
    return 1 if rank > 3 else rank - 1
