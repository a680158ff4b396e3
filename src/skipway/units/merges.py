"""Joins other than additions: products and concatenations of a stream with its branch, and mixing of streams."""

from __future__ import annotations

from skipway.trace import ops
from skipway.units.find import Found
from skipway.units.links import Links

__all__ = ["mixing_joins"]

_SUMS = ops.MATMUL | ops.BATCHED_MATMUL | frozenset({"sum", "mean", "einsum"})


def mixing_joins(found: Found) -> list[tuple[int, str]]:
    """Sums over a stack of streams (hyper-connections, einsum of [x, F(x)]): listed, not read as units."""
    links, nodes = found.links, found.links.nodes
    joins = []
    for node in nodes:
        if node.op not in _SUMS or not links.alive[node.id] or not links.is_data(node.id):
            continue
        data = links.data_inputs(node)
        if len(data) != 1:
            continue
        stack = nodes[links.strip(data[0])]
        if stack.op not in ("stack", "cat") or not _holds_stream_and_branch(stack.inputs, links):
            continue
        joins.append((node.id, f"a {node.op} mixes a stream with what was computed from it"))
    return joins


def _holds_stream_and_branch(inputs: list[int], links: Links) -> bool:
    data = [links.strip(i) for i in inputs if links.is_data(i)]
    return any(
        links.descends(b, a) and any(links.is_heavy(i) for i in links.region(a, b)) for a in data for b in data if a != b
    )
