"""What stands between a branch's last real work and the place where it is added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.trace.graph import Graph, Node
    from skipway.units.describe import Described

__all__ = ["last_steps"]


def last_steps(unit: Described, graph: Graph) -> Iterator[tuple[Node, int]]:
    """Views, factors and dropout at the end of the first branch, from the join back; each with the node of its data."""
    i = unit.candidate.branches[0].node
    while True:
        node = graph.nodes[i]
        data = [j for j in node.inputs if graph.nodes[j].data and graph.nodes[j].floating]
        if len(data) != 1 or not (node.op in ops.VIEW or node.op in ops.MULTIPLY or node.op in ops.DROPOUT):
            return
        yield node, data[0]
        i = data[0]
