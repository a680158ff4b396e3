"""Relations in a recorded graph: who reads whom, who descends from whom, what is alive."""

from __future__ import annotations

from skipway.trace.graph import RAND, Graph, Node
from skipway.trace.ops import SUBSTANTIAL, VIEW

__all__ = ["Links"]

_LEAVES = ("param", "const")


class Links:
    """Consumers, ancestors and liveness of a graph's nodes.

    `ancestors[i]` is a bit set (a Python integer) of the floating, non-leaf nodes that node i descends from through
    floating values: no dominator tree is needed to ask "does the branch read x".
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        count = len(self.nodes)
        self.consumers: list[list[int]] = [[] for _ in range(count)]
        for node in self.nodes:
            for i in set(node.inputs):
                self.consumers[i].append(node.id)
        self.alive = self._reachable(graph.outputs)
        self.outputs = frozenset(graph.outputs)
        self.ancestors = [0] * count
        for node in self.nodes:
            if not node.floating:
                continue
            bits = 0
            for i in node.inputs:
                source = self.nodes[i]
                if source.floating and source.op not in _LEAVES:
                    bits |= self.ancestors[i] | (1 << i)
            self.ancestors[node.id] = bits

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
        return self.nodes[i].data and self.nodes[i].floating

    def data_inputs(self, node: Node) -> list[int]:
        """Inputs that are floating data, in argument order."""
        return [i for i in node.inputs if self.nodes[i].data and self.nodes[i].floating]

    def strip(self, i: int) -> int:
        """The node behind views and casts: same numbers, other shape."""
        while self.nodes[i].op in VIEW:
            floating = [j for j in self.nodes[i].inputs if self.nodes[j].floating]
            if len(floating) != 1 or self.nodes[floating[0]].op in _LEAVES:
                return i
            i = floating[0]
        return i

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

    def region(self, start: int, end: int) -> list[int]:
        """Nodes on the ways from `start` (exclusive) to `end` (inclusive)."""
        found: list[int] = []
        seen: set[int] = set()
        pending = [end]
        while pending:
            i = pending.pop()
            if i in seen or i == start or not self.descends(i, start):
                continue
            seen.add(i)
            found.append(i)
            pending += [j for j in self.nodes[i].inputs if self.nodes[j].floating]
        return found

    def is_random(self, i: int) -> bool:
        """Whether a value that is not data was drawn from a generator."""
        return not self.nodes[i].data and bool(self.nodes[i].taint & RAND)

    def is_heavy(self, i: int) -> bool:
        """Whether a node makes a branch a branch: weights, attention, pooling, normalisation."""
        return self.nodes[i].op in SUBSTANTIAL
