"""From a candidate to its formula: name what stands on the shortcut, at the ends of the branch, and after the join."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from skipway.form import Merge, Op, UnitForm
from skipway.trace import ops
from skipway.trace.graph import PARAM
from skipway.units.after import After, dropout_op
from skipway.units.find import Candidate, Found, Term, join_factor, nest
from skipway.units.merges import merge_candidates
from skipway.units.routes import NEUTRAL, Routes, Step, number

if TYPE_CHECKING:
    from skipway.trace.graph import Node
    from skipway.units.links import Links

__all__ = ["Described", "Describer", "Tail", "describe"]

_PRODUCTS = ops.MATMUL | ops.BATCHED_MATMUL | ops.ATTENTION
_TAIL_KINDS = frozenset({"view", "scale"})
_END_KINDS = _TAIL_KINDS | {"dropout"}
# Nodes followed back through a branch to write it down: beyond this the equation would be no help anyway.
_LONGEST_BRANCH = 400
_NORMS = frozenset({"batch", "layer", "rms", "group", "instance"})


@dataclass(frozen=True, slots=True)
class Tail:
    """A branch's end: `output` is F's own output, `nodes` the scales and views that take it to the join.

    `scales` are all factors at the end, those before a dropout or drop-path too, which F keeps for its own.
    """

    term: Term
    output: int
    nodes: tuple[int, ...]
    scales: tuple[int, ...]


@dataclass(slots=True)
class Described:
    """A candidate with its formula and the nodes behind each part of it (in order of execution).

    Args:
        shortcut_nodes: from x (exclusive) to the shortcut operand.
        tails: one per branch.
        after_nodes: from the join (exclusive) to `end`, the stream behind the unit.
    """

    candidate: Candidate
    form: UnitForm
    shortcut_nodes: tuple[int, ...]
    tails: list[Tail]
    after_nodes: tuple[int, ...]
    end: int


class Describer:
    """Writes down candidates of one graph.

    Args:
        found: the candidates, with those inside others known.
    """

    def __init__(self, found: Found) -> None:
        self.links: Links = found.links
        self.routes: Routes = found.routes
        self.nodes = found.links.nodes
        self.graph = found.links.graph
        self.after = After(found.links, found.routes)
        self.inner: dict[int, Candidate] = {}
        self.learn(found.candidates)

    def learn(self, candidates: list[Candidate]) -> None:
        """Take note of where units start and join, and which lie inside others."""
        self.inner = {c.join: c for c in candidates}
        self.after.bases = {c.base for c in candidates}
        self.after.inside = {j for c in candidates for j in c.inner}

    def describe(self, candidate: Candidate) -> Described:
        """The formula of a candidate, and the nodes behind each part of it."""
        after, region, end = self.after.walk(candidate.join)
        steps = list(reversed(candidate.route.steps))
        shortcut = list(self.route_ops(steps))
        branches = [self.line(t.node, candidate) for t in candidate.branches]
        tails = [self.tail(t, candidate) for t in candidate.branches]
        merge: Merge = candidate.merge
        root = self.nodes[candidate.join]
        if root.attrs.get("fused") == "stack-mean":
            if len(root.inputs) == 2:
                merge = "mean"
            else:
                shortcut.append(Op("scale", 1.0 / len(root.inputs)))
                branches = [(*b, Op("scale", 1.0 / len(root.inputs))) for b in branches]
        if any(self.nodes[i].op == "sub" for tail in tails for i in tail.nodes):
            shortcut.append(_complement(branches[0][-1:]))  # x + a·(F(x) − x) is (1 − a)·x + a·F(x)
        elif any(s.detail == "interpolation" for s in steps):
            branches[0] = (*branches[0], _complement(tuple(op for op in shortcut if op.kind in ("scale", "gate"))))
        shortcut += self.join_scale(candidate.shortcut)
        branches = [(*b, *self.join_scale(t)) for b, t in zip(branches, candidate.branches, strict=True)]
        form = UnitForm(
            shortcut=tuple(shortcut),
            merge=merge,
            branch=branches[0],
            parallel=tuple(branches[1:]) if merge == "add" else (),
            after=tuple(after),
            stream="pair" if candidate.pair else "single",
        )
        return Described(candidate, form, tuple(s.node for s in steps), tails, tuple(sorted(region)), end)

    # ---- shortcut and ends of branches

    def route_ops(self, steps: list[Step]) -> list[Op]:
        """The operations of steps in order of execution; what leaves the numbers alone is left out."""
        out: list[Op] = []
        composite = False
        for step in steps:
            if step.kind == "norm" and self.nodes[step.node].op in ops.MULTIPLY:
                before = self.routes.steps(self.links.strip(step.source))
                centred = bool(before) and before[0].kind == "center"
                out.append(Op("norm", "layer" if centred else "rms"))
                composite = True
                continue
            if composite and step.kind == "scale" and step.detail in ("learned vector", "tensor"):
                composite = False  # the gain of a norm written by hand
                continue
            op = self.step_op(step)
            if op is not None:
                composite = False
                again = bool(out) and op.kind == "slice" and out[-1] == op  # rows and columns are sliced in turn
                if not again:
                    out.append(op)
        return out

    def step_op(self, step: Step) -> Op | None:
        """One step as an operation, None where it leaves the numbers alone."""
        node = self.nodes[step.node]
        if step.kind == "scale":
            return Op("scale", number(step.detail)) if step.detail not in NEUTRAL else None
        if step.kind in ("norm", "activation"):
            return Op(step.kind, step.detail)
        if step.kind == "gate":
            return Op("gate", step.detail)
        if step.kind == "dropout":
            return dropout_op(step.detail, self.routes.dropped(node))
        if step.kind == "slice":
            return self.slicing(node, self.nodes[step.source])
        if step.kind == "pad":
            learned = any(self.nodes[j].taint & PARAM for j in node.inputs if not self.nodes[j].data)
            return Op("pad", "learned" if learned else "zero")  # a class token, registers
        if step.kind == "pool":
            return Op("pool", self.pooling(node, self.nodes[step.source]))
        if step.kind in ("projection", "kernel"):
            return Op("projection", "linear" if step.detail == "linear" else self.window(node))
        return None

    def slicing(self, node: Node, source: Node) -> Op | None:
        """A strided subsample, a part, or nothing."""
        if node.shape == source.shape:
            return None
        step = node.attrs.get("step", 1) or 1
        return Op("slice", f"stride{step}" if step > 1 else "part")

    def pooling(self, node: Node, source: Node) -> str:
        """Kind, kernel and stride of a pooling operation, e.g. ``avg2x2/2``."""
        averages = "avg" in node.op or node.op == "mean"
        kind = "avg" if averages else "upsample" if "upsample" in node.op else "max"
        kernel = node.attrs.get("kernel_size")
        if not kernel:
            return kind
        stride = node.attrs.get("stride") or kernel
        return kind + _window(kernel, stride, len(source.shape) - 2)

    def window(self, node: Node) -> str:
        """Kernel and stride of a convolution, e.g. ``3x3/2``."""
        kernel = self.routes.kernel(node)
        return _window(kernel, node.attrs.get("stride") or (1,), len(kernel))

    def join_scale(self, term: Term) -> list[Op]:
        """A factor that the join itself applies to an operand: alpha, beta, minus."""
        factor = join_factor(self.nodes[term.add], term.position)
        return [Op("scale", factor)] if factor != 1 else []

    def tail(self, term: Term, candidate: Candidate) -> Tail:
        """Peel scales and views off the end of a branch, down to F's own output."""
        nodes: list[int] = []
        i = term.node
        if self.nodes[i].attrs.get("synthetic"):  # one side of a lerp: its weight belongs to the join
            nodes.append(i)
            i = self.nodes[i].inputs[0]
        while i in candidate.region:
            steps = self.routes.steps(i)
            if len(steps) != 1 or steps[0].source not in candidate.region:
                break
            gated = steps[0].kind == "gate" and self.interpolated(steps[0].source, candidate) is not None
            if steps[0].kind not in _TAIL_KINDS and not gated:
                break
            nodes.append(i)
            i = steps[0].source
        interpolation = self.interpolated(i, candidate) if nodes else None
        if interpolation is not None:
            nodes.append(i)
            i = interpolation
        while nodes and self.nodes[nodes[-1]].op in ops.VIEW:
            i = nodes.pop()  # views next to F belong to F: its output is replaced where it was made
        scales = [n for n in nodes if self.nodes[n].op in ops.MULTIPLY]
        return Tail(term, i, tuple(reversed(nodes)), (*self.scales_before(i, candidate), *reversed(scales)))

    def scales_before(self, i: int, candidate: Candidate) -> tuple[int, ...]:
        """Factors further back at the end of a branch, behind its last weight, in order of execution."""
        found: list[int] = []
        while i in candidate.region:
            steps = self.routes.steps(i)
            if len(steps) != 1 or steps[0].kind not in _END_KINDS:
                break
            if steps[0].kind == "scale" and self.nodes[i].op in ops.MULTIPLY:
                found.append(i)
            i = steps[0].source
        return tuple(reversed(found))

    def interpolated(self, i: int, candidate: Candidate) -> int | None:
        """In x + a·(F(x) - x) the node of F(x)."""
        node = self.nodes[i]
        if node.op != "sub" or len(node.inputs) != 2 or candidate.route.steps:
            return None
        first, second = node.inputs
        return first if self.links.strip(second) == candidate.base and first in candidate.region else None

    # ---- the branch, written down

    def line(self, end: int, candidate: Candidate) -> tuple[Op, ...]:
        """The operations of a branch along its main line to node `end`, in order of execution."""
        out: list[Op] = []
        line: list[Step] = []
        i = end
        for _ in range(_LONGEST_BRANCH):
            if i in (candidate.x, candidate.reads) or i not in candidate.region:
                break
            step = self.branch_step(i, candidate)
            if step is None:
                break
            line.append(step)
            i = step.source
        pending: list[Step] = []
        for step in reversed(line):
            if step.kind == "weight":
                out += self.route_ops(pending)
                pending = []
                op = Op("weight", step.detail)
                if op.detail == "attention":  # scores and values are two products of one attention
                    while out and out[-1].kind in ("scale", "dropout") and op in out[-4:]:
                        out.pop()
                if not (op.detail == "attention" and out and out[-1] == op):
                    out.append(op)
            else:
                pending.append(step)
        out += self.route_ops(pending)
        # Cutting into heads or windows and padding to them is the branch's own business; a part at the end is not.
        return tuple(op for k, op in enumerate(out) if op.kind not in ("slice", "pad") or k == len(out) - 1)

    def branch_step(self, i: int, candidate: Candidate) -> Step | None:
        """One step back along the main line of a branch."""
        node = self.nodes[i]
        starts = (candidate.x, candidate.reads)
        inside = [j for j in node.inputs if self.nodes[j].floating and (j in candidate.region or j in starts)]
        if not inside:
            inside = [j for j in self.links.data_inputs(node) if self.links.descends(j, candidate.x)]
        if not inside:
            return None
        first = inside[0]
        if node.op in ops.CONVOLUTION:
            return Step("weight", self.convolution(node), i, first)
        if node.op in _PRODUCTS:
            weighted = node.op not in ops.ATTENTION and any(not self.nodes[j].data for j in node.inputs)
            return Step("weight", "linear" if weighted else "attention", i, inside[-1])
        if node.op in ops.ACTIVATION:
            return Step("activation", ops.activation_name(node.op, node.attrs), i, first)
        light = [s for s in self.routes.steps(i) if s.source in inside]
        if light and light[0].kind not in ("projection", "kernel"):
            return light[0]
        if node.op in ops.HEAVY and node.op not in ("softmax", "safe_softmax"):
            return Step("weight", ops.heavy_name(node.op), i, first)
        if node.op in ops.MULTIPLY and len(inside) == 2 and (written_out := self.activation_by_hand(i, inside)):
            return written_out
        if node.op == "mean" and math.prod(node.shape) < math.prod(self.nodes[first].shape):
            return Step("pool", node.op, i, first)
        if i in self.inner:  # a unit inside the branch: the line goes through its branch, not along its shortcut
            return Step("view", node.op, i, self.inner[i].branches[0].node)
        if len(inside) > 1:
            first = max(inside, key=lambda j: self.weights_between(candidate.x, j))
        return Step("view", node.op, i, first)

    def weights_between(self, start: int, end: int) -> int:
        """How many weighted layers lie on the ways between two nodes."""
        return sum(self.nodes[i].op in ops.WORKING for i in self.links.region(start, end))

    def activation_by_hand(self, i: int, inside: list[int]) -> Step | None:
        """GELU or SiLU written out: a product of two pointwise functions of one value."""
        a, b = inside
        common = (self.links.ancestors[a] | 1 << a) & (self.links.ancestors[b] | 1 << b)
        if not common:
            return None
        start = common.bit_length() - 1
        made_of = [self.nodes[j].op for j in self.links.region(start, i)]
        if not set(made_of) <= ops.POINTWISE:
            return None
        cubic = "pow" in made_of or made_of.count("mul") > 3
        if "erf" in made_of or ("tanh" in made_of and cubic):
            name = "gelu"
        elif "sigmoid" in made_of:
            name = "silu"
        elif "tanh" in made_of and "softplus" in made_of:
            name = "mish"
        else:
            return None
        return Step("activation", name, i, start)

    def convolution(self, node: Node) -> str:
        """A convolution of a branch, e.g. ``conv3x3/2``; depthwise, grouped and transposed ones are marked."""
        if node.attrs.get("transposed"):
            return "convT" + self.window(node)
        groups = node.attrs.get("groups", 1)
        data = self.links.data_inputs(node)
        channels = self.nodes[data[0]].shape[1] if data and len(self.nodes[data[0]].shape) > 1 else 0
        prefix = "conv" if groups == 1 else "dwconv" if groups == channels else "gconv"
        return prefix + self.window(node)


def describe(found: Found) -> list[Described]:
    """Write down every candidate; a norm after the last unit of a pre-norm chain is the chain's, not the unit's."""
    describer = Describer(found)
    merges = merge_candidates(found, lambda c: describer.after.walk(c.join)[2])
    if merges:
        found.candidates = sorted([*found.candidates, *merges], key=lambda c: c.join)
        nest(found.candidates)
        describer.learn(found.candidates)
    described = [describer.describe(c) for c in found.candidates]
    links = found.links
    bases = {d.candidate.base for d in described}
    consumed = {i for d in described for tail in d.tails for i in tail.nodes}
    consumed |= {s.node for d in described for s in d.candidate.route.steps}
    found.rejected = [r for r in found.rejected if r.join not in consumed]
    followed = [
        links.strip(d.candidate.join) in bases
        or any(b == links.strip(d.end) or _gated_from(b, d.end, found) for b in bases if b >= d.end)
        for d in described
    ]
    clean = sum(f and not d.form.after for d, f in zip(described, followed, strict=True))
    siblings = sum(followed)
    for unit, is_followed in zip(described, followed, strict=True):
        norm = any(op.kind == "norm" and op.detail in _NORMS for op in unit.form.after)
        if not is_followed and norm and siblings and clean * 2 > siblings:
            unit.form = replace(unit.form, after=())
            unit.after_nodes, unit.end = (), unit.candidate.join
    return described


def _complement(factor: tuple[Op, ...]) -> Op:
    """One minus a factor: of a number, of a gate; of a learned scale another learned scale."""
    if len(factor) == 1 and factor[0].kind == "gate":
        return Op("gate", "g" if factor[0].detail == "1-g" else "1-g")
    if len(factor) == 1 and isinstance(factor[0].detail, float):
        return Op("scale", 1.0 - factor[0].detail)
    return Op("scale", factor[0].detail if factor and factor[0].kind == "scale" else "tensor")


def _gated_from(base: int, end: int, found: Found) -> bool:
    """Whether a stream is another one behind a gate (squeeze and excite), so that this one does not end there."""
    links, node = found.links, found.links.nodes[base]
    data = links.data_inputs(node)
    if node.op not in ops.MULTIPLY or node.id == end or len(data) != 2:
        return False
    return any(links.strip(v) == links.strip(end) and found.routes.is_gate(g) for v, g in (data, data[::-1]))


def _window(kernel: object, stride: object, dims: int) -> str:
    """Kernel and stride in words; a stride of 1 is left out."""
    k, s = _spread(kernel, dims), _spread(stride, dims)
    text = "x".join(map(str, k))
    if all(v == 1 for v in s):
        return text
    return f"{text}/{s[0]}" if len(set(s)) == 1 else f"{text}/" + "x".join(map(str, s))


def _spread(value: object, dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * max(dims, 1)
    values = tuple(value) if isinstance(value, (list, tuple)) else (1,)
    return values * dims if len(values) == 1 and dims > 1 else values
