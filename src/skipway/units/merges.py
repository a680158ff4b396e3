"""Joins other than additions: products and concatenations of a stream with its branch, and mixing of streams.

A product or a concatenation is read as a unit only where units of that kind follow one another, each starting from the
stream behind the one before: a gate, a GLU or a ghost module is no unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.trace import ops
from skipway.units.find import Candidate, Found, Term
from skipway.units.routes import Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.trace.graph import Node
    from skipway.units.links import Links

__all__ = ["merge_candidates", "mixing_joins"]

_SUMS = ops.MATMUL | ops.BATCHED_MATMUL | frozenset({"sum", "mean", "einsum"})
_ON_PRODUCT = frozenset({"view", "projection", "norm", "slice", "pad", "pool", "scale"})


def merge_candidates(found: Found, stream_behind: Callable[[Candidate], int]) -> list[Candidate]:
    """Units joined by product or concatenation, in order of execution.

    Args:
        found: the additive units.
        stream_behind: the node behind a candidate's join and what follows it.
    """
    links = found.links
    joins = {c.join for c in found.candidates}
    readings: list[Candidate] = []
    previous: dict[frozenset[int], int] = {}
    for node in links.nodes:
        if not links.alive[node.id] or not links.is_data(node.id) or node.id in joins:
            continue
        candidate = None
        if node.op == "mul" and not node.attrs.get("synthetic"):
            candidate = _product(node, found)
        elif node.op == "cat":
            candidate = _concatenation(node, found, previous)
            previous[frozenset(node.inputs)] = node.id
        if candidate is not None:
            readings.append(candidate)
    return _chained(readings, links, stream_behind)


def _product(node: Node, found: Found) -> Candidate | None:
    links, routes = found.links, found.routes
    data = links.data_inputs(node)
    if len(node.inputs) != 2 or len(data) != 2 or data[0] == data[1] or any(routes.is_gate(i) for i in data):
        return None
    for position, (a, b) in enumerate((data, data[::-1])):
        if links.nodes[a].shape != node.shape:
            continue
        wall = frozenset({b, links.strip(b)})
        for x, route in routes.back(a, links.ancestors[b], wall).items():
            work = routes.traits.between(x, [b])
            if not set(route.kinds()) <= _ON_PRODUCT or not work.weighted:
                continue
            weights = sum(links.nodes[i].op in ops.WEIGHTED for i in work.region())
            if route.cost and weights < 2:
                continue  # a gated linear unit
            shortcut, branch = Term(a, node.id, position), Term(b, node.id, 1 - position)
            return Candidate(
                node.id, (node.id,), x, links.strip(x), shortcut, route, [branch], [], work.region(),
                merge="multiply",
            )  # fmt: skip
    return None


def _concatenation(node: Node, found: Found, previous: dict[frozenset[int], int]) -> Candidate | None:
    """``cat([x, F(x)])``, or the same spelled ``cat([a, b, F(cat([a, b]))])``."""
    links, routes = found.links, found.routes
    inputs = node.inputs
    if len(inputs) < 2 or len(links.data_inputs(node)) != len(inputs):
        return None
    for at in (len(inputs) - 1, 0):
        rest = inputs[:at] + inputs[at + 1 :]
        x = rest[0] if len(rest) == 1 else previous.get(frozenset(rest))
        if x is None:
            continue
        base = links.strip(x)
        if not links.descends(inputs[at], base):
            continue
        work = routes.traits.between(base, [inputs[at]])
        if work.weighted and work.heavy:
            shortcut, branch = Term(x, node.id, 0 if at else 1), Term(inputs[at], node.id, 1 if at else 0)
            return Candidate(
                node.id, (node.id,), x, base, shortcut, Route(x, 0, ()), [branch], [], work.region(),
                merge="concat",
            )  # fmt: skip
    return None


def _chained(readings: list[Candidate], links: Links, stream_behind: Callable[[Candidate], int]) -> list[Candidate]:
    """Readings that follow another of their kind, or that another follows."""
    behind = {}
    for candidate in readings:
        for node in (candidate.join, stream_behind(candidate)):
            behind[candidate.merge, links.strip(node)] = candidate
    kept: set[int] = set()
    for candidate in readings:
        before = behind.get((candidate.merge, candidate.base))
        if before is not None and before is not candidate:
            kept |= {before.join, candidate.join}
    return [c for c in readings if c.join in kept]


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
        if stack.op not in ("stack", "cat") or not _over_stack(node, stack):
            continue
        if not _holds_stream_and_branch(stack.inputs, links):
            continue
        joins.append((node.id, f"a {node.op} mixes a stream with what was computed from it"))
    return joins


def _over_stack(node: Node, stack: Node) -> bool:
    """Whether an operation sums over the dimension of a stack.

    Not over space, as squeeze-and-excite does, and not over concatenated features, as a linear layer does.
    """
    dims = len(stack.shape)
    at = stack.attrs.get("dim", 0) % dims
    if node.op in ("sum", "mean"):
        over = node.attrs.get("dim")
        over = over if isinstance(over, (list, tuple)) else [over] if over is not None else []
        return len(over) == 1 and bool(over[0] % dims == at)
    return not (node.op in ops.MATMUL and stack.op == "cat" and at == dims - 1)


def _holds_stream_and_branch(inputs: list[int], links: Links) -> bool:
    data = [links.strip(i) for i in inputs if links.is_data(i)]
    return any(
        links.descends(b, a) and any(links.is_heavy(i) for i in links.region(a, b))
        for a in data
        for b in data
        if a != b
    )
