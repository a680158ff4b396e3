"""What happens on the ways from x to the ends of branches: whether it is work at all, and of what sort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipway.trace import ops
from skipway.units.links import members

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.trace.graph import Node
    from skipway.units.links import Links

__all__ = ["Traits", "Work"]

_NONLINEAR = ops.ACTIVATION | ops.ATTENTION | {"softmax", "safe_softmax", "bmm", "exp"}
_NOTED = _NONLINEAR | ops.SUBSTANTIAL | ops.MULTIPLY | ops.WEIGHTED


@dataclass(frozen=True, slots=True)
class Work:
    """What lies between x and the ends of branches; `nodes` is a bit set."""

    heavy: bool
    nonlinear: bool
    weighted: bool
    spatial: bool
    nodes: int

    def region(self) -> frozenset[int]:
        """The nodes as ids."""
        return frozenset(members(self.nodes))


class Traits:
    """Bit sets of the nodes that make a branch heavy, nonlinear, weighted, spatial.

    Any region is then judged by four intersections, and no node is looked at twice.
    """

    def __init__(self, links: Links, kernel: Callable[[Node], tuple[int, ...]]) -> None:
        self._links = links
        self.heavy = self.nonlinear = self.weighted = self.spatial = 0
        for node in links.nodes:
            op = node.op
            if op not in _NOTED:
                continue
            bit = 1 << node.id
            if op in ops.SUBSTANTIAL:
                self.heavy |= bit
            if op in _NONLINEAR or (op in ops.MULTIPLY and len(links.data_inputs(node)) > 1):
                self.nonlinear |= bit
            if op in ops.WEIGHTED and any(not links.nodes[j].data for j in node.inputs):
                self.weighted |= bit
                if op in ops.CONVOLUTION and any(k > 1 for k in kernel(node)):
                    self.spatial |= bit

    def between(self, x: int, ends: list[int]) -> Work:
        """What happens on the ways from x to the ends of branches."""
        nodes = 0
        for end in ends:
            nodes |= self._links.between(x, end)
        return Work(
            bool(nodes & self.heavy),
            bool(nodes & self.nonlinear),
            bool(nodes & self.weighted),
            bool(nodes & self.spatial),
            nodes,
        )
