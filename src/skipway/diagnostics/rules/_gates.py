"""Gates at the joins of a recorded graph, bounded or not: y = T·F + (1 − T)·x in its spellings.

The unit finder takes for a gate only what a sigmoid or softmax made. Here the form of the sum decides: a value and one
minus it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.rules._rule import Evidence
    from skipway.trace.graph import Node
    from skipway.units.links import Links

__all__ = ["Gate", "Seat", "carriers", "interpolations", "is_bounded"]

_BOUNDED: Final = frozenset({"sigmoid", "hardsigmoid", "softmax", "safe_softmax"})


@dataclass(frozen=True, slots=True)
class Seat:
    """An operation and the position among its operands at which a value is read."""

    node: int
    position: int


@dataclass(frozen=True, slots=True)
class Gate:
    """A join that interpolates between a stream and what was computed from it.

    Args:
        join: the addition.
        gate: the node of T.
        read: where T is read.
        carried: where x is read.
        on_branch: whether T multiplies the branch (and 1 − T the stream) or the other way round.
    """

    join: int
    gate: int
    read: Seat
    carried: Seat
    on_branch: bool


def interpolations(evidence: Evidence) -> list[Gate]:
    """All joins of a stream x and a branch F, computed from x, as T·F + (1 − T)·x with a T computed from data."""
    return evidence.once("interpolations", lambda: _interpolations(evidence.found.links))


def _interpolations(links: Links) -> list[Gate]:
    found = []
    for node in links.nodes:
        if node.op in ("add", "sub") and links.alive[node.id] and len(node.inputs) == 2 and links.is_data(node.id):
            gate = next(_readings(node, links), None)
            if gate is not None:
                found.append(gate)
    return found


def carriers(evidence: Evidence) -> list[Gate]:
    """All joins T·x + F, where both T and F are computed from x by weights and T is no sigmoid or the like."""
    links = evidence.found.links
    known = {c.join for c in evidence.found.candidates} | {g.join for g in interpolations(evidence)}
    found = []
    for node in links.nodes:
        if node.op != "add" or node.id in known or len(node.inputs) != 2 or not links.is_data(node.id):
            continue
        if not links.alive[node.id] or node.attrs.get("fused", "addcmul") != "addcmul":
            continue
        for i, branch in (node.inputs, node.inputs[::-1]):
            gate = _carrier(node, links.nodes[links.strip(i)], branch, links)
            if gate is not None:
                found.append(gate)
                break
    return found


def _carrier(join: Node, product: Node, branch: int, links: Links) -> Gate | None:
    if product.op != "mul" or len(product.inputs) != 2 or product.inputs[0] == product.inputs[1]:
        return None
    for p in (0, 1):
        gate, x = product.inputs[p], product.inputs[1 - p]
        base = links.strip(x)
        if links.nodes[x].shape != join.shape or not (links.descends(gate, base) and links.descends(branch, base)):
            continue
        worked = all(any(links.nodes[i].op in ops.WEIGHTED for i in links.region(base, e)) for e in (gate, branch))
        if worked and not is_bounded(gate, links):
            return Gate(join.id, gate, Seat(product.id, p), Seat(product.id, 1 - p), on_branch=False)
    return None


def _readings(join: Node, links: Links) -> Iterator[Gate]:
    nodes = links.nodes
    if join.attrs.get("fused") == "lerp":
        yield from _lerp(join, links)
        return
    first, second = (nodes[i] for i in join.inputs)
    if join.op == "add" and first.op == second.op == "mul":
        yield from _two_products(join, first, second, links)
    for stream, product in ((0, second), (1, first)):
        if product.op == "mul" and len(product.inputs) == 2:
            yield from _difference(join, stream, product, links)


def _lerp(join: Node, links: Links) -> Iterator[Gate]:
    start, end = (links.nodes[i] for i in join.inputs)
    if len(start.inputs) == 2 and links.is_data(start.inputs[1]):
        weight = start.inputs[1]
        if _descends(end.inputs[0], start.inputs[0], links):
            yield Gate(join.id, weight, Seat(join.id, 2), Seat(join.id, 0), on_branch=True)
        elif _descends(start.inputs[0], end.inputs[0], links):
            yield Gate(join.id, weight, Seat(join.id, 2), Seat(join.id, 1), on_branch=False)


def _two_products(join: Node, first: Node, second: Node, links: Links) -> Iterator[Gate]:
    """T·a + (1 − T)·b."""
    for one, other in ((first, second), (second, first)):
        if len(one.inputs) != 2 or len(other.inputs) != 2:
            continue
        for p in (0, 1):
            for q in (0, 1):
                gate, complement = one.inputs[p], other.inputs[q]
                if not links.is_data(gate) or _complemented(complement, links) != links.strip(gate):
                    continue
                a, b = one.inputs[1 - p], other.inputs[1 - q]
                if _descends(a, b, links):
                    yield Gate(join.id, gate, Seat(one.id, p), Seat(other.id, 1 - q), on_branch=True)
                elif _descends(b, a, links):
                    yield Gate(join.id, gate, Seat(one.id, p), Seat(one.id, 1 - p), on_branch=False)


def _difference(join: Node, stream: int, product: Node, links: Links) -> Iterator[Gate]:
    """The difference x + T·(F − x), or F − T·(F − x) which is the same with the sides exchanged."""
    x = links.strip(join.inputs[stream])
    for p in (0, 1):
        gate, inner = product.inputs[p], links.nodes[links.strip(product.inputs[1 - p])]
        if inner.op != "sub" or len(inner.inputs) != 2 or not links.is_data(gate):
            continue
        plus, minus = (links.strip(i) for i in inner.inputs)
        taken, other = (minus, plus) if join.op == "add" else (plus, minus)
        if taken != x or (join.op == "sub" and stream != 0):
            continue
        if _descends(other, x, links):
            yield Gate(join.id, gate, Seat(product.id, p), Seat(join.id, stream), on_branch=True)
        elif _descends(x, other, links):
            at = 0 if inner.inputs and links.strip(inner.inputs[0]) == other else 1
            yield Gate(join.id, gate, Seat(product.id, p), Seat(inner.id, at), on_branch=False)


def _complemented(i: int, links: Links) -> int | None:
    """T where a node is 1 − T (also −T + 1), else None."""
    node = links.nodes[links.strip(i)]
    data = links.data_inputs(node)
    if len(data) != 1:
        return None
    if node.op == "rsub" or (node.op == "sub" and not links.nodes[node.inputs[0]].data):
        return links.strip(data[0])
    inner = links.nodes[links.strip(data[0])]
    negated = links.data_inputs(inner)
    minus = inner.op == "neg" or (inner.op in ops.MULTIPLY and inner.attrs.get("scalar") == -1)
    if node.op == "add" and minus and len(negated) == 1:
        return links.strip(negated[0])
    return None


def _descends(node: int, ancestor: int, links: Links) -> bool:
    return links.descends(node, ancestor) or links.descends(node, links.strip(ancestor))


def is_bounded(gate: int, links: Links) -> bool:
    """Whether a gate is a sigmoid or softmax itself, or a part or one minus of one: nothing need be measured."""
    i = gate
    for _ in range(8):
        i = links.strip(i)
        node = links.nodes[i]
        if node.op in _BOUNDED:
            return True
        of = _complemented(i, links)
        if of is not None and (node.attrs.get("scalar") in (1, 1.0, None)):
            i = of
        elif node.op in ops.SLICE:
            i = links.data_inputs(node)[0]
        else:
            return False
    return False
