"""Relations in a recorded graph: who reads whom, who descends from whom, what is alive."""

from __future__ import annotations

from skipway.trace.graph import RAND, Graph, Node
from skipway.trace.ops import SUBSTANTIAL, VIEW

__all__ = ["Links", "members"]

_LEAVES = ("param", "const")


class Links:
    """Consumers, ancestors and liveness of a graph's nodes.

    `ancestors[i]` is a bit set (a Python integer) of the floating, non-leaf nodes that node i descends from through
    floating values: no dominator tree is needed to ask "does the branch read x". `descendants` is its transpose: what
    lies between two nodes is an intersection of the two.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        count = len(self.nodes)
        self.consumers: list[list[int]] = [[] for _ in range(count)]
        self.alive = self._reachable(graph.outputs)
        self.outputs = frozenset(graph.outputs)
        self.ancestors = [0] * count
        self.descendants = [0] * count
        self._is_data = [node.data and node.floating for node in self.nodes]
        self._stripped = list(range(count))
        values = [node.floating and node.op not in _LEAVES for node in self.nodes]
        for node in self.nodes:
            inputs = node.inputs
            for i in inputs if len(inputs) < 2 else set(inputs):  # one input needs no set
                self.consumers[i].append(node.id)
            if not inputs or not node.floating:
                continue
            bits = 0
            for i in inputs:
                if values[i]:
                    bits |= self.ancestors[i] | (1 << i)
            self.ancestors[node.id] = bits
            if node.op in VIEW:
                floating = [i for i in inputs if self.nodes[i].floating]
                if len(floating) == 1 and values[floating[0]]:
                    self._stripped[node.id] = self._stripped[floating[0]]
        for node in reversed(self.nodes):
            if node.floating and node.inputs:
                bits = self.descendants[node.id] | (1 << node.id)
                for i in node.inputs:
                    if values[i]:
                        self.descendants[i] |= bits

    def _reachable(self, outputs: list[int]) -> list[bool]:
        alive = [False] * len(self.nodes)
        pending = list(outputs)
        while pending:
            i = pending.pop()
            if not alive[i]:
                alive[i] = True
                pending += self.nodes[i].inputs
        return alive

    def descends(self, node: int, ancestor: int) -> bool:
        """Whether `node` depends on `ancestor` (and is not it)."""
        return bool(self.ancestors[node] >> ancestor & 1)

    def is_data(self, i: int) -> bool:
        """Whether a node is a floating value that depends on the model's input."""
        return self._is_data[i]

    def data_inputs(self, node: Node) -> list[int]:
        """Inputs that are floating data, in argument order."""
        is_data = self._is_data
        return [i for i in node.inputs if is_data[i]]

    def strip(self, i: int) -> int:
        """The node behind views and casts: same numbers, other shape."""
        return self._stripped[i]

    def readers(self, i: int) -> set[int]:
        """Operations that read a value, looking through views; -1 stands for the model's output."""
        found: set[int] = set()
        seen: set[int] = set()
        pending = [i]
        while pending:
            for c in self.consumers[pending.pop()]:
                if c in seen or not self.alive[c]:
                    continue
                seen.add(c)
                node = self.nodes[c]
                if not node.floating:
                    continue
                if node.op in VIEW and len(self.data_inputs(node)) == 1:
                    pending.append(c)
                else:
                    found.add(c)
        if i in self.outputs:
            found.add(-1)
        return found

    def between(self, start: int, end: int) -> int:
        """Bit set of the nodes on the ways from `start` (exclusive) to `end` (inclusive)."""
        return (self.ancestors[end] | (1 << end)) & self.descendants[start]

    def region(self, start: int, end: int) -> list[int]:
        """Nodes on the ways from `start` (exclusive) to `end` (inclusive), in order of execution."""
        return members(self.between(start, end))

    def is_random(self, i: int) -> bool:
        """Whether a value that is not data was drawn from a generator."""
        return not self.nodes[i].data and bool(self.nodes[i].taint & RAND)

    def is_heavy(self, i: int) -> bool:
        """Whether a node makes a branch a branch: weights, attention, pooling, normalisation."""
        return self.nodes[i].op in SUBSTANTIAL


def members(bits: int) -> list[int]:
    """The elements of a bit set, in order."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
