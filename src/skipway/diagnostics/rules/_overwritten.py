"""Which in-place writes destroy a stream that a shortcut still reads under its old name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._joins import apart, copy_of, holder, is_sum
from skipway.trace import ops
from skipway.units.links import Links

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.rules._rule import Evidence
    from skipway.trace.graph import Graph, Place
    from skipway.trace.record import Trace

__all__ = ["Suspect", "rewritten", "suspects"]

_RULE: Final = "shortcut-overwritten"


@dataclass(frozen=True, slots=True)
class Suspect:
    """An in-place write that a join reads by way of its shortcut.

    Args:
        write: the node that was written in place.
        add, position: the join's addition and which of its operands the shortcut is.
        unit: position of the unit, None for a sum of one tensor with itself.
        sure: whether structure alone shows that the shortcut's name is older than the write.
    """

    write: int
    add: int
    position: int
    unit: int | None
    sure: bool


def rewritten(evidence: Evidence) -> frozenset[int]:
    """Writes that are shown to destroy what a shortcut reads."""
    return evidence.once("rewritten", lambda: _convicted(evidence, list(suspects(evidence))))


def suspects(evidence: Evidence) -> Iterator[Suspect]:
    """Writes within a unit's own module call, to a value that the call did not make for itself alone."""
    graph, links = evidence.graph, evidence.found.links
    if not graph.overwrites:
        return
    for k, unit in enumerate(evidence.described):
        candidate = unit.candidate
        call = holder(unit, links)
        join_calls = set(graph.chain(links.nodes[candidate.join].call))
        on_shortcut = [*reversed(unit.shortcut_nodes), *_back(candidate.x, evidence)]
        for write in on_shortcut:
            if write in graph.overwrites and _reaches_into(write, call, join_calls, evidence):
                sure = _within_branch(write, call, candidate.region, evidence)
                yield Suspect(write, candidate.shortcut.add, candidate.shortcut.position, k, sure)
    for node in links.nodes:
        if is_sum(node, links) and copy_of(node.inputs[0], links) == copy_of(node.inputs[1], links):
            chain = set(graph.chain(node.call))
            for write in _back(node.inputs[0], evidence):
                if write in graph.overwrites and _reaches_into(write, min(chain), chain, evidence):
                    for position in (0, 1):
                        yield Suspect(write, node.id, position, None, sure=False)


def _back(i: int, evidence: Evidence) -> Iterator[int]:
    """A value and what its memory held before, as long as it was only seen otherwise or overwritten."""
    links, overwrites = evidence.found.links, evidence.graph.overwrites
    while True:
        yield i
        if i in overwrites:
            i = overwrites[i]
            continue
        node = links.nodes[i]
        data = links.data_inputs(node)
        if node.op not in ops.VIEW or node.op == "clone" or len(data) != 1:
            return
        i = data[0]


def _reaches_into(write: int, call: int, join_calls: set[int], evidence: Evidence) -> bool:
    """Whether the write runs within the unit, and the join's code may hold the old value under another name.

    What one inner call makes and overwrites before it returns has no other name outside: a norm and its ReLU.
    """
    graph = evidence.graph
    node, before = graph.nodes[write], graph.nodes[graph.overwrites[write]]
    if not before.data or not before.floating:
        return False
    around = graph.chain(node.call)
    if call not in around:
        return False
    makers = set(graph.chain(before.call))
    return next(c for c in around if c in makers) in join_calls


def _within_branch(write: int, call: int, region: frozenset[int], evidence: Evidence) -> bool:
    """Whether an inner call that goes on to weights holds the write, so that it does not return what it wrote."""
    graph = evidence.graph
    around = graph.chain(graph.nodes[write].call)
    inner = set(around[: around.index(call)])
    return any(
        graph.nodes[i].op in ops.WORKING and inner.intersection(graph.chain(graph.nodes[i].call)) for i in region
    )


def _convicted(evidence: Evidence, found: Sequence[Suspect]) -> frozenset[int]:
    if not found or evidence.lab is None or evidence.trace.error is not None:
        return frozenset()
    writes = sorted({s.write for s in found})
    try:
        again = evidence.lab.trace(_RULE, around=apart(evidence.model, evidence.graph, writes))
    except Exception:  # noqa: BLE001  # a model may insist on its memory: then nothing is shown
        return frozenset()
    seen = _Again(again, evidence.graph)
    return frozenset(s.write for s in found if seen.reads_old(s))


class _Again:
    """The run in which every suspected write went to a copy."""

    def __init__(self, trace: Trace, before: Graph) -> None:
        self.links, self.before = Links(trace.graph), before
        self._at: dict[tuple[Place, str], int] = {}
        for node in trace.graph.nodes:
            if node.source:
                self._at[trace.graph.place(node), node.op] = node.id

    def node(self, i: int) -> int | None:
        """Where the same operation is in this run."""
        node = self.before.nodes[i]
        return self._at.get((self.before.place(node), node.op))

    def reads_old(self, suspect: Suspect) -> bool:
        """Whether the shortcut does not read what was written, while another operand computes from it."""
        write, add = self.node(suspect.write), self.node(suspect.add)
        if write is None or add is None or not self.links.alive[write]:
            return False
        inputs = self.links.nodes[add].inputs
        if suspect.position >= len(inputs):
            return False
        reads = [i == write or self.links.descends(i, write) for i in inputs]
        return not reads[suspect.position] and any(reads)
