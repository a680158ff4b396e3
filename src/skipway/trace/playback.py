"""Make the graph of a run from what was noted of its operations."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from skipway.trace.graph import CONST, PARAM, Graph
from skipway.trace.operation import Operation, attributes

if TYPE_CHECKING:
    from skipway.trace.tape import Seen, Tape

__all__ = ["Playback", "Raised"]

_SPLITS: Final = frozenset(
    ["split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "unsafe_chunk", "tensor_split"]
)


@dataclass(frozen=True, slots=True)
class Raised:
    """An operation that raised (or gave nothing): its name, the module call it ran in, the nodes that it read."""

    op: str
    call: int
    inputs: tuple[int, ...]
    attrs: dict[str, Any]


class Playback:
    """Turns the events of a tape into nodes."""

    def __init__(self, graph: Graph, tape: Tape) -> None:
        self.graph, self.count = graph, 0
        self._tape = tape
        self._shown: dict[Any, dict[Seen, tuple[int, int]]] = {}
        self._writes: defaultdict[Any, list[tuple[int, int, bool, Seen]]] = defaultdict(list)
        self._time = 0
        self._ordinals: dict[tuple[int, str], int] = {}
        self.raised: Raised | None = None
        """The last operation of all, if it raised."""

    def know(self, seen: Seen, node: int) -> None:
        """Remember that a tensor holds the value of `node`."""
        self._time += 1
        shown = self._shown.get(seen[0])
        if shown is None:
            shown = self._shown[seen[0]] = {}
        shown[seen] = (node, self._time)

    def read(self, seen: Seen, call: int) -> int:
        """The node whose value a tensor holds now."""
        storage = seen[0]
        shown = self._shown.get(storage)
        if shown is None:
            return self._first_sight(seen)
        entry = shown.get(seen)
        if entry is None:  # an alias made where dispatch does not see it
            return self._alias([max(shown.values(), key=lambda e: e[1])[0]], seen, call)
        known, since = entry
        writes = self._writes.get(storage)
        if not writes or writes[-1][0] <= since:
            return known
        newer = [w for w in writes if w[0] > since and not _disjoint(w[3], seen)]
        if not newer:
            return known
        if newer[-1][2]:
            return self._alias([newer[-1][1]], seen, call)
        return self._alias([known, *(w[1] for w in newer)], seen, call, op="merge")

    def _alias(self, sources: list[int], seen: Seen, call: int, op: str = "alias") -> int:
        node = self.graph.add(op, sources, {}, seen[2], seen[4], call)
        self.know(seen, node.id)
        return node.id

    def _first_sight(self, seen: Seen) -> int:
        kind, number = self._tape.leaves.get(seen[0], ("const", 0))
        if kind == "param" or seen[0] in self._tape.trained:
            params = 1 << number if kind == "param" else 0
            node = self.graph.leaf("param", seen[2], seen[4], taint=PARAM, params=params)
        else:
            node = self.graph.leaf("const", seen[2], seen[4], taint=CONST)
        self.know(seen, node.id)
        return node.id

    def play(self) -> None:
        """Make nodes of the events noted so far."""
        graph, ordinals, read_now = self.graph, self._ordinals, self.read
        nodes = graph.nodes
        for known, call, caller, read, arguments, out, written, flops in self._tape.events:
            op = known.op
            place = (call, op)
            ordinals[place] = ordinal = ordinals.get(place, -1) + 1
            self.raised = None
            if read is None:
                continue
            inputs = [read_now(seen, call) for seen in read if seen is not None]
            if isinstance(arguments, dict):
                attrs = arguments
            else:
                attrs = attributes(known, (None,) * known.tail + arguments, {}) if known.read else {}
            if op in ("detach", "alias", "slice") and out == read[0]:
                continue  # the same numbers in the same place: whoever reads either reads the one that was made first
            first = len(nodes)
            if written:
                self._written(known, inputs, attrs, written, call)
                if isinstance(out, list):
                    self._several(known, inputs, attrs, out, call)
            elif isinstance(out, tuple):
                node = (graph.new if known.plain else graph.add)(op, inputs, attrs, out[2], out[4], call)
                if not known.is_view:
                    node.nbytes = _nbytes(out)
                self.know(out, node.id)
            elif out:
                self._several(known, inputs, attrs, out, call)
            elif out is None:
                self.raised = Raised(op, call, tuple(inputs), attrs)
            for node in nodes[first:]:
                node.ordinal, node.source, node.caller = ordinal, op, caller
            if flops and first < len(nodes):
                nodes[first].flops = flops if flops > 0 else known.count_late(read, arguments, out)
        self.count += len(self._tape.events)
        self._tape.events.clear()

    def _written(
        self,
        known: Operation,
        inputs: list[int],
        attrs: dict[str, Any],
        written: list[tuple[Seen, bool]],
        call: int,
    ) -> None:
        sources = (inputs[1:] or inputs) if known.op == "copy" else inputs
        add = self.graph.new if known.plain else self.graph.add
        for seen, covers in written:
            node = add(known.op, sources, attrs, seen[2], seen[4], call)
            self.know(seen, node.id)
            self._writes[seen[0]].append((self._time, node.id, covers, seen))
            if inputs and known.writes == (0,):
                self.graph.overwrites[node.id] = inputs[0]

    def _several(
        self, known: Operation, inputs: list[int], attrs: dict[str, Any], outputs: list[Seen], call: int
    ) -> None:
        op = known.op
        if op in _SPLITS:
            for i, seen in enumerate(outputs):
                node = self.graph.add(op, inputs, {**attrs, "part": i}, seen[2], seen[4], call)
                self.know(seen, node.id)
            return
        _, _, shape, _, dtype = outputs[0]
        main = (self.graph.new if known.plain else self.graph.add)(op, inputs, attrs, shape, dtype, call)
        self.know(outputs[0], main.id)
        main.nbytes = sum(map(_nbytes, outputs))
        if known.normalises:  # the statistics; should one be read after all, it counts as a constant
            return
        for seen in outputs[1:]:  # masks, further states
            same = seen[2] == shape
            extra = self.graph.add(op if same else "getitem", [main.id], {"extra": True}, seen[2], seen[4], call)
            self.know(seen, extra.id)


def _nbytes(seen: Seen) -> int:
    return math.prod(seen[2]) * seen[4].itemsize


def _disjoint(a: Seen, b: Seen) -> bool:
    """Whether two views of one storage certainly share no element: parts of a chunk, columns of a matrix.

    With equal strides both are boxes in one grid; they share nothing if their intervals in some dimension do not meet.
    """
    here, there, strides = a[1], b[1], a[3]
    if here is None or there is None or strides is None or strides != b[3] or 0 in strides:
        return False
    for stride, size_a, size_b in sorted(zip(strides, a[2], b[2], strict=True), reverse=True):
        start_a, here = divmod(here, stride)
        start_b, there = divmod(there, stride)
        if start_a + size_a <= start_b or start_b + size_b <= start_a:
            return True
    return False
