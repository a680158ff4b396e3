"""What follows a join on the stream: immediate post-dominators, within the join's own module call."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from skipway.form import Op
from skipway.trace import ops
from skipway.units.routes import NEUTRAL, norm_of, number

if TYPE_CHECKING:
    from skipway.trace.graph import Node
    from skipway.units.links import Links
    from skipway.units.routes import Routes

__all__ = ["After", "dropout_op"]


class After:
    """Walks from a join along the stream until something else than norm, activation, scale or dropout comes.

    Args:
        links: relations of the graph.
        routes: reads scales.
    """

    def __init__(self, links: Links, routes: Routes) -> None:
        self.links, self.routes = links, routes
        self.nodes, self.graph = links.nodes, links.graph
        self.bases: set[int] = set()
        """Nodes from which units start: nothing that comes behind them belongs to the unit before."""
        self.inside: set[int] = set()
        """Joins inside another unit's branch: a scale behind them is that branch's."""

    def walk(self, join: int) -> tuple[list[Op], set[int], int]:
        """The operations after a join, all nodes passed, and the node at the end."""
        found: list[Op] = []
        region: set[int] = set()
        current = join
        call = self.nodes[join].call
        for _ in range(12):
            if self.links.strip(current) in self.bases:
                break  # the next unit starts here
            after, between = self.post_dominator(current)
            if after is None:
                break
            node = self.nodes[after]
            if call not in self.graph.chain(node.call):
                break
            if any(self.nodes[i].op not in ops.POINTWISE for i in between):
                break
            outside = [
                j for i in (*between, after) for j in self.links.data_inputs(self.nodes[i])
                if j != current and j not in between
            ]  # fmt: skip
            if outside:
                break
            op, goes_on = self.operation(node, between, found)
            if op is not None and op.kind == "scale" and join in self.inside:
                break
            if not goes_on:
                break
            if op is not None:
                found.append(op)
            region |= between | {after}
            current = after
        return found, region, current

    def operation(self, node: Node, between: set[int], found: list[Op]) -> tuple[Op | None, bool]:
        """One operation after the join, and whether the walk goes on."""
        inner = {self.nodes[i].op for i in between}
        if node.op in ops.VIEW:
            return None, True
        if node.op in ops.NORM:
            return Op("norm", norm_of(node, self.nodes)), True
        if node.op in ops.ACTIVATION:
            return Op("activation", ops.activation_name(node.op, node.attrs)), True
        if node.op in ops.DROPOUT:
            return dropout_op("dropout", self.routes.dropped(node)), True
        if node.op in ops.ADD and node.attrs.get("other") == 0:
            return None, True
        if node.op not in ops.MULTIPLY and not (node.op == "div" and between):
            return None, node.op in ops.ADD and bool(found) and len(self.links.data_inputs(node)) == 1
        if inner & {"rsqrt", "sqrt", "reciprocal", "pow", "linalg_vector_norm"}:
            return Op("norm", "layer" if "sub" in inner else "rms"), True
        if inner & ops.ACTIVATION:
            return Op("activation", "silu" if "sigmoid" in inner else "gelu"), True
        if len(self.links.data_inputs(node)) == 1:
            kind, detail = self.routes.scale(node)
            last = found[-1] if found else None
            gain = detail == "learned vector" and last is not None and last.kind == "norm"
            if gain or detail in NEUTRAL:  # the gain of a norm written by hand
                return None, True
            if kind == "dropout":
                return dropout_op(detail, self.routes.dropped(node)), True
            return Op(kind, number(detail)), True
        return None, False

    def post_dominator(self, i: int, limit: int = 40) -> tuple[int | None, set[int]]:
        """The node through which everything that leaves i passes, and the nodes before it."""
        if i in self.links.outputs:
            return None, set()
        queue: list[int] = []
        seen: set[int] = set()
        for c in self.links.consumers[i]:
            if self.links.alive[c] and self.nodes[c].floating:
                heapq.heappush(queue, c)
                seen.add(c)
        between: set[int] = set()
        while queue and len(between) < limit:
            node = heapq.heappop(queue)
            if not queue:
                return node, between
            between.add(node)
            if node in self.links.outputs:
                return None, between
            for c in self.links.consumers[node]:
                if self.links.alive[c] and self.nodes[c].floating and c not in seen:
                    seen.add(c)
                    heapq.heappush(queue, c)
        return None, between


def dropout_op(kind: str, p: float | None) -> Op | None:
    """Dropout or drop-path with its probability where that is known; None where nothing is dropped."""
    name = "drop_path" if kind == "drop_path" else "dropout"
    if p == 0:
        return None
    return Op(name) if p is None else Op(name, p)
