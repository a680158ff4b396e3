"""Which in-place writes destroy a stream that a shortcut still reads under its old name."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._joins import apart, copy_of, holder, sums
from skipway.diagnostics.rules._renamed import Rename, renamed
from skipway.trace import ops
from skipway.units.links import Links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from skipway.diagnostics.rules._rule import Evidence
    from skipway.trace.graph import Graph, Place
    from skipway.trace.record import Trace

__all__ = ["Suspect", "mended", "rewritten", "suspects"]

_RULE: Final = "shortcut-overwritten"
# Each name is tried in a run of its own; few tensors have more names in the code around a write.
_MOST_NAMES: Final = 6
_SAME_MEMORY: Final = (ops.VIEW | ops.SLICE) - {"clone", "index", "to_copy", "contiguous"}


@dataclass(frozen=True, slots=True)
class Suspect:
    """An in-place write that a join reads by way of its shortcut.

    Args:
        write: the node that was written in place.
        add, position: the join's addition and which of its operands the shortcut is.
        unit: position of the unit, None for a sum of one tensor with itself.
        rise: how many module calls lie between the write and the code of the unit.
        sure: whether structure alone shows that the shortcut's name is older than the write.
    """

    write: int
    add: int
    position: int
    unit: int | None
    rise: int
    sure: bool


def rewritten(evidence: Evidence) -> Mapping[int, Rename | None]:
    """Writes that are shown to destroy what a shortcut reads, and the name by which that is shown, if it takes one."""
    return evidence.once("rewritten", lambda: _convicted(evidence, list(suspects(evidence))))


@contextmanager
def mended(evidence: Evidence, writes: Mapping[int, Rename | None]) -> Iterator[None]:
    """While it is open, those writes go to copies."""
    names = {write: rename for write, rename in writes.items() if rename is not None}
    results = [write for write in writes if write not in names]
    with ExitStack() as stack:
        if results:
            stack.enter_context(apart(evidence.model, evidence.graph, results))
        if names:
            stack.enter_context(renamed(evidence.model, evidence.graph, names, {}))
        yield


def suspects(evidence: Evidence) -> Iterator[Suspect]:
    """Writes within a unit's own module call, to a value that the call did not make for itself alone."""
    graph, links = evidence.graph, evidence.found.links
    if not graph.overwrites:
        return
    known = {unit.candidate.join: k for k, unit in enumerate(evidence.described)}
    for candidate in evidence.found.candidates:  # some of which could not be proved, as x changes under its name
        if candidate.merge != "add" and candidate.join not in known:
            continue
        call = holder(candidate, links)
        join_calls = set(graph.chain(links.nodes[candidate.join].call))
        on_shortcut = [*(step.node for step in candidate.route.steps), *_back(candidate.x, evidence)]
        for write in _writes(on_shortcut, evidence):
            if _reaches_into(write, call, join_calls, evidence):
                sure = _within_branch(write, call, candidate.region, evidence)
                rise = _rise(write, call, graph)
                yield Suspect(
                    write, candidate.shortcut.add, candidate.shortcut.position, known.get(candidate.join), rise, sure
                )
    for node in sums(evidence):
        if copy_of(node.inputs[0], links) == copy_of(node.inputs[1], links):
            chain = set(graph.chain(node.call))
            for write in _writes(_back(node.inputs[0], evidence), evidence):
                if _reaches_into(write, min(chain), chain, evidence):
                    rise = _rise(write, node.call, graph)
                    for position in (0, 1):
                        yield Suspect(write, node.id, position, None, rise, sure=False)


def _writes(nodes: Iterable[int], evidence: Evidence) -> Iterator[int]:
    """The in-place writes among nodes, and those to parts that are merged into one of them."""
    links, overwrites = evidence.found.links, evidence.graph.overwrites
    for i in nodes:
        parts = links.nodes[i].inputs[1:] if links.nodes[i].op == "merge" else []
        for write in (i, *reversed(parts)):
            if write in overwrites:
                yield write


def _rise(write: int, call: int, graph: Graph) -> int:
    return max(len(graph.chain(graph.nodes[write].call)) - len(graph.chain(call)), 0)


def _back(i: int, evidence: Evidence) -> Iterator[int]:
    """A value and what its memory held before, as long as it was only seen otherwise or overwritten."""
    links, overwrites = evidence.found.links, evidence.graph.overwrites
    while True:
        yield i
        if i in overwrites:
            i = overwrites[i]
            continue
        node = links.nodes[i]
        data = node.inputs[:1] if node.op == "merge" else links.data_inputs(node)
        if node.op not in ops.VIEW or node.op == "clone" or len(data) != 1:
            return
        i = data[0]


def _reaches_into(write: int, call: int, join_calls: set[int], evidence: Evidence) -> bool:
    """Whether the write runs within the unit, and the join's code may hold the old value under another name.

    What one inner call makes and overwrites before it returns has no other name outside: a norm and its ReLU.
    """
    graph = evidence.graph
    links = evidence.found.links
    node, before = graph.nodes[write], graph.nodes[graph.overwrites[write]]
    if not before.data or not before.floating:
        return False
    around = graph.chain(node.call)
    if call not in around:
        return False
    while before.op in _SAME_MEMORY and links.is_data(before.id) and before.inputs:
        before = graph.nodes[before.inputs[0]]
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


def _convicted(evidence: Evidence, found: Sequence[Suspect]) -> Mapping[int, Rename | None]:
    if not found or evidence.lab is None or evidence.trace.error is not None:
        return {}
    lab, graph = evidence.lab, evidence.graph
    shown: dict[int, Rename | None] = {}
    try:
        seen = _Again(lab.trace(_RULE, around=apart(evidence.model, graph, sorted({s.write for s in found}))), graph)
        shown.update({s.write: None for s in found if seen.reads_old(s)})
        # A write whose result nobody reads any more is read by name.
        left = [s for s in found if s.write not in shown and not seen.reads(s.write)]
        for which in range(_MOST_NAMES):
            if not left:
                break
            rises = {s.write: max(t.rise for t in left if t.write == s.write) for s in left}
            renames, names = {write: Rename(which, rise) for write, rise in rises.items()}, dict[int, int]()
            seen = _Again(lab.trace(_RULE, around=renamed(evidence.model, graph, renames, names)), graph)
            shown.update({s.write: renames[s.write] for s in left if s.write in names and seen.reads_old(s)})
            left = [s for s in left if s.write not in shown and names.get(s.write, 0) > which + 1]
    except Exception:  # noqa: BLE001  # a model may insist on its memory: then nothing more is shown
        return shown
    return shown


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

    def reads(self, write: int) -> bool:
        """Whether the output depends on a write."""
        node = self.node(write)
        return node is not None and self.links.alive[node]

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
