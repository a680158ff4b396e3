"""Light routes: the ways by which a shortcut may lead from a join back to the stream.

A route consists of steps that leave the signal recognisable: views, scales, gates, norms, dropout, slices, padding,
pooling, and at most two projections. The walk is best-first by cost and never looks past the first node that the other
operands of the join descend from.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.trace import ops
from skipway.trace.graph import PARAM, RAND, Node
from skipway.units.work import Traits

if TYPE_CHECKING:
    from skipway.units.links import Links

__all__ = ["NEUTRAL", "Route", "Routes", "Step", "norm_of", "number"]

_COST: Final = {
    "view": 0, "center": 0, "bias": 0, "scale": 1, "gate": 1, "dropout": 1, "cat": 1,
    "norm": 2, "slice": 2, "pad": 2, "pool": 3, "projection": 5, "activation": 6, "kernel": 7,
}  # fmt: skip
# Details of scales that are no part of a formula: a padding mask, and a factor of one.
NEUTRAL: Final = frozenset({"mask", "1.0"})
_GATES: Final = frozenset({"sigmoid", "hardsigmoid", "softmax", "safe_softmax"})
_IN_GATE: Final = ops.VIEW | ops.SLICE | ops.ADD | ops.MULTIPLY
_ROOTS: Final = frozenset({"rsqrt", "sqrt", "reciprocal", "linalg_vector_norm", "norm", "pow"})
_MEANS: Final = frozenset({"mean", "var", "sum", "var_mean", "linalg_vector_norm", "norm"})
_SPLIT_LIKE: Final = frozenset({"slice", "index", "narrow", "split", "split_with_sizes", "chunk", "unbind"})
# Nodes looked at in one walk: a shortcut is short, and the walk must stay cheap in a dense graph.
_MOST_STEPS: Final = 80


@dataclass(frozen=True, slots=True)
class Step:
    """One step back along a route: what node `node` does to node `source`."""

    kind: str
    detail: str
    node: int
    source: int


@dataclass(frozen=True, slots=True)
class Route:
    """A way back from a join's operand to `start`; steps in order from the join."""

    start: int
    cost: int
    steps: tuple[Step, ...]

    def kinds(self) -> list[str]:
        """Kinds of the steps."""
        return [s.kind for s in self.steps]


class Routes:
    """Finds light routes in one graph."""

    def __init__(self, links: Links) -> None:
        self.links, self.nodes = links, links.nodes
        self.traits = Traits(links, self.kernel)
        self._steps: dict[tuple[int, bool], list[Step]] = {}

    def back(self, term: int, stop: int, wall: frozenset[int]) -> dict[int, Route]:
        """Routes from `term` to the first nodes of bit set `stop` on each way, never entering `wall`."""
        found: dict[int, Route] = {}
        done: set[tuple[int, int, int]] = set()
        count = 0
        # A persistent chain (step, rest) instead of tuples that grow: a walk is then linear in its length.
        queue: list[tuple[int, int, int, int, int, int, tuple[Step, object] | None]] = [(0, -term, 0, term, 0, 0, None)]
        while queue and len(done) < _MOST_STEPS:
            cost, _, _, i, projections, activations, chain = heapq.heappop(queue)
            if (i, projections, activations) in done:
                continue
            done.add((i, projections, activations))
            if i in wall:
                continue
            if stop >> i & 1:
                if i not in found or cost < found[i].cost:
                    found[i] = Route(i, cost, _unchained(chain))
                continue
            projected = _last_projection(chain)
            for step in self.steps(i, activation=projected and projections == 1 and activations == 0):
                p = projections + (step.kind in ("projection", "kernel"))
                a = activations + (step.kind == "activation")
                if p > (1 if a else 2):
                    continue
                count += 1
                heapq.heappush(queue, (cost + _COST[step.kind], -step.source, count, step.source, p, a, (step, chain)))
        return found

    def steps(self, i: int, *, activation: bool = False) -> list[Step]:
        """The light steps back from node i; an activation is one only directly before a projection."""
        key = (i, activation)
        known = self._steps.get(key)
        if known is None:
            known = self._steps[key] = self._find_steps(self.nodes[i], activation)
        return known

    def _find_steps(self, node: Node, activation: bool) -> list[Step]:  # noqa: C901, PLR0911, PLR0912  # a table of operations  # a table of operations
        links, nodes, op = self.links, self.nodes, node.op
        data = links.data_inputs(node)
        if not data and op in ops.VIEW:
            data = [j for j in node.inputs if nodes[j].floating and nodes[j].op not in ("param", "const")]
        if not data or node.attrs.get("extra"):
            return []
        first = data[0]
        size, before = math.prod(node.shape), math.prod(nodes[first].shape)
        if op == "merge":
            return [Step("view", op, node.id, j) for j in data]
        if op in ops.VIEW:
            return [Step("view", op, node.id, first)]
        if op in ops.NORM:
            return [Step("norm", norm_of(node, nodes), node.id, first)]
        if op in ops.DROPOUT:
            return [Step("dropout", op, node.id, first)]
        if activation and op in ops.ACTIVATION and len(data) == 1:
            return [Step("activation", ops.activation_name(op, node.attrs), node.id, first)]
        if op in ("max", "amax", "min") and len(data) == 1 and 0 < size < before:
            return [Step("pool", "max", node.id, first)]
        if op in _SPLIT_LIKE:
            return [Step("slice", op, node.id, first)]
        if op in ops.PAD:
            return [Step("pad", op, node.id, first)]
        if op == "cat":
            return [Step("cat" if len(data) > 1 else "pad", op, node.id, j) for j in data]
        if op in ops.POOL:
            return [Step("pool", op, node.id, first)]
        if op in ops.CONVOLUTION and len(data) == 1:
            kernel = self.kernel(node)
            return [Step("projection" if all(k == 1 for k in kernel) else "kernel", "conv", node.id, first)]
        if op in ops.MATMUL and len(data) == 1:
            weights = [j for j in node.inputs if not nodes[j].data and nodes[j].taint & PARAM]
            return [Step("projection", "linear", node.id, first)] if weights else []
        if op == "neg":
            return [Step("scale", "-1.0", node.id, first)]
        if op in ops.MULTIPLY:
            return self._multiplication(node, data)
        if op == "where" and len(data) == 1:
            return [Step("view", op, node.id, first)]
        if op in ops.ADD:
            return self._bias(node, data)
        return []

    def _bias(self, node: Node, data: list[int]) -> list[Step]:
        if len(data) == 1 and len(node.inputs) <= 2 and node.shape == self.nodes[data[0]].shape:
            return [Step("bias", node.op, node.id, data[0])]
        if node.op == "sub" and len(node.inputs) == 2 and self.interpolates(node.id):
            return [Step("view", "interpolation", node.id, node.inputs[0])]
        if node.op == "sub" and len(data) == 2:
            value, mean = data
            of = self.links.data_inputs(self.nodes[mean])
            if self.nodes[mean].op == "mean" and of and self.links.strip(of[0]) == self.links.strip(value):
                return [Step("center", "", node.id, value)]
        return []

    def interpolates(self, i: int) -> bool:
        """Whether i is the difference in b + a·(x − b), the long spelling of a lerp of x and b."""
        data = [
            j for j in self.nodes[i].inputs if self.nodes[j].floating
        ]  # the state before the first step is a constant
        readers = self.links.readers(i)
        if len(data) != 2 or len(readers) != 1 or -1 in readers:
            return False
        product = next(iter(readers))
        factor = self.nodes[product]
        if factor.op not in ops.MULTIPLY:
            return False
        sums = self.links.readers(product)
        if len(sums) != 1 or -1 in sums:
            return False
        end = self.nodes[next(iter(sums))]
        taken = self.links.strip(data[1])
        others = [self.links.strip(j) for j in end.inputs]
        return end.op == "add" and len(others) == 2 and taken in others

    def _multiplication(self, node: Node, data: list[int]) -> list[Step]:
        if len(data) == 1:
            if node.op == "div" and not self.nodes[node.inputs[0]].data:
                return []  # c / x is no scale
            return [Step(*self.scale(node), node.id, data[0])]
        if len(data) != 2 or data[0] == data[1]:
            return []
        found = []
        for value, gate in (data, data[::-1]):
            if node.attrs.get("lerp"):
                if gate == data[1]:
                    found.append(Step("gate", node.attrs["lerp"], node.id, value))
            elif self.is_gate(gate):
                if not self.is_gate(value):
                    found.append(Step("gate", self.gate_side(gate), node.id, value))
            elif self._is_statistic(gate, value):
                found.append(Step("norm", "rms", node.id, value))
        return found

    def scale(self, node: Node) -> tuple[str, str]:
        """Kind and detail of a multiplication by something that is not data."""
        others = [self.nodes[j] for j in node.inputs if not self.nodes[j].data]
        if not others:
            scalar = node.attrs.get("scalar")
            if scalar is None:
                return "scale", "tensor"
            return "scale", repr(1.0 / scalar if node.op == "div" and scalar else float(scalar))
        other = others[0]
        if other.taint & RAND:
            whole = math.prod(other.shape) == math.prod(node.shape)
            return "dropout", "dropout" if whole and math.prod(node.shape[1:]) > 1 else "drop_path"
        if other.taint & PARAM:
            return "scale", "learned scalar" if math.prod(other.shape) == 1 else "learned vector"
        return "scale", "tensor" if other.taint else "mask"

    def dropped(self, node: Node) -> float | None:
        """Probability of an inverted dropout, from the operation or from its mask; None if it does not show."""
        if node.op in ops.DROPOUT:
            p = node.attrs.get("p")
            return 0.0 if node.attrs.get("train") is False else float(p) if isinstance(p, (int, float)) else None
        pending = [j for j in node.inputs if not self.nodes[j].data and self.nodes[j].taint & RAND]
        rescaled: object = node.attrs.get("scalar") if node.op == "div" else None
        for _ in range(6):
            if not pending:
                return None
            mask = self.nodes[pending.pop()]
            if mask.op == "div":
                rescaled = mask.attrs.get("scalar")
            if mask.op == "bernoulli":
                keep = mask.attrs.get("p")
                if not isinstance(keep, (int, float)) or rescaled != keep:
                    return None
                return float(f"{1.0 - keep:.6g}")  # some are computed in single precision
            pending += [j for j in mask.inputs if self.nodes[j].taint & RAND]
        return None

    def kernel(self, node: Node) -> tuple[int, ...]:
        """Kernel size of a convolution, from its weight."""
        weights = [self.nodes[j].shape for j in node.inputs if not self.nodes[j].data and len(self.nodes[j].shape) > 2]
        return weights[0][2:] if weights else ()

    def is_gate(self, i: int) -> bool:
        """Whether a value is a sigmoid or softmax, or one minus it."""
        return self._gate(i) is not None

    def gate_side(self, i: int) -> str:
        """``"g"`` for a gate, ``"1-g"`` for one minus a gate."""
        return "1-g" if self._gate(i) else "g"

    def _gate(self, i: int) -> bool | None:
        """Whether a gate is complemented, None when it is no gate."""
        flipped = False
        for _ in range(8):
            node = self.nodes[i]
            if node.op in _GATES:
                return flipped
            data = self.links.data_inputs(node)
            if len(data) != 1:
                return None
            if node.op in ("rsub", "neg") or (node.op == "sub" and not self.nodes[node.inputs[0]].data):
                flipped = not flipped
            elif node.op not in _IN_GATE:
                return None
            i = data[0]
        return None

    def _is_statistic(self, statistic: int, value: int) -> bool:
        """Whether `statistic` is a normaliser computed from `value`: one over a root of a mean of it."""
        links, nodes = self.links, self.nodes
        a, b = nodes[statistic].shape, nodes[value].shape
        if len(a) != len(b) or a == b or not any(p == 1 and q > 1 for p, q in zip(a, b, strict=True)):
            return False
        base = links.strip(value)
        roots = {value, base}
        if nodes[base].op == "sub":  # centred
            roots |= {links.strip(j) for j in links.data_inputs(nodes[base])}
        pending = [statistic]
        seen: set[int] = set()
        reached = root = mean = False
        while pending and len(seen) < 40:
            i = pending.pop()
            if i in seen:
                continue
            seen.add(i)
            if i in roots or links.strip(i) in roots:
                reached = True
                continue
            node = nodes[i]
            root |= node.op in _ROOTS
            mean |= node.op in _MEANS
            if node.op in ops.HEAVY or node.op in ops.NORM:
                return False
            pending += links.data_inputs(node)
        return reached and root and mean


def _unchained(chain: tuple[Step, object] | None) -> tuple[Step, ...]:
    out: list[Step] = []
    while chain is not None:
        step, chain = chain  # type: ignore[assignment]  # a chain of the same type, spelled `object` to end the recursion
        out.append(step)
    return tuple(reversed(out))


def _last_projection(chain: tuple[Step, object] | None) -> bool:
    """Whether the route so far holds a 1×1 projection."""
    while chain is not None:
        if chain[0].kind == "projection":
            return True
        chain = chain[1]  # type: ignore[assignment]  # as above
    return False


def norm_of(node: Node, nodes: list[Node]) -> str:
    """The field's name of a norm; instance norm runs as a batch norm of one example with N·C channels."""
    name = ops.norm_name(node.op)
    if name != "batch" or any(nodes[i].op == "param" for i in node.inputs[1:]):  # its gain is repeated for each example
        return name
    seen = nodes[node.inputs[0]]
    whole = nodes[seen.inputs[0]].shape if seen.op in ops.VIEW and seen.inputs else ()
    if len(whole) != len(seen.shape) or len(whole) < 3:  # N, C and at least one dimension to average
        return name
    return "instance" if seen.shape == (1, whole[0] * whole[1], *whole[2:]) else name


def number(detail: str) -> str | float:
    """A detail as a number, if it is one."""
    try:
        return float(detail)
    except ValueError:
        return detail
