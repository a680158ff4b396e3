"""Prove units: run the model again with every branch's output replaced by noise, and predict what must follow.

In that run F's output is a random tensor R. If a unit's formula is right, the stream behind it is ``f(h(x) ⊕
s·R)``, with x
as it was when it was made. The prediction applies the formula's own operations to a private copy of x and to
R; the model
never sees the copy. A wrong x, h, f or s makes the prediction miss. One run proves all units, since each
prediction starts
from the x that this run has; units that this run does not reach (routing that depends on values) are tried one by one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from skipway.trace.batch import Batch, call_arguments, copied, tensors_of
from skipway.trace.graph import Node, Place
from skipway.trace.modules import ModuleStack, eager
from skipway.trace.ops import VIEW
from skipway.trace.preserve import preserved
from skipway.trace.record import flat_tensors, operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.units.describe import Described, Tail
    from skipway.units.links import Links

__all__ = ["BOUND_EPS", "WRONG", "Proof", "prove"]

BOUND_EPS: Final = 32.0
"""Largest relative error of a proved unit, in eps of the compute dtype."""

WRONG: Final = ("x", "h", "f", "s")
"""Deliberate mistakes that a prediction can be made with, to show that it would miss."""

# Size of s·R against x: small enough that 1,000 replaced branches leave the stream finite, large enough to be seen.
_NOISE: Final = 1.0 / 16.0
# Runs spent on single units when the common run does not decide them.
_MOST_SINGLE_RUNS: Final = 64


_FUSED: Final = frozenset({"addmm", "baddbmm", "addbmm", "addmv", "addcmul", "addcdiv", "lerp"})


@dataclass(slots=True)
class Proof:
    """What a replacement run showed of one unit.

    Args:
        error: relative error of the prediction in eps of the compute dtype; None when the unit was not decided.
        reason: why it was not decided.
        wrong: errors of the deliberately wrong predictions that were asked for, in eps.
    """

    error: float | None = None
    reason: str = ""
    wrong: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the unit is proved."""
        return self.error is not None and self.error <= BOUND_EPS


def prove(
    model: nn.Module, batch: Batch, described: Sequence[Described], links: Links, *, wrong: Sequence[str] = ()
) -> tuple[list[Proof], int]:
    """Prove units of a recorded run; returns a proof for each and the number of forward runs that it took.

    Args:
        model: the module that was recorded, in the mode in which it was recorded; left as it was.
        batch: the batch that was recorded.
        described: the units.
        links: relations of the recorded graph.
        wrong: deliberate mistakes, of `WRONG`, whose error is to be reported beside that of the right prediction.
    """
    if not described:
        return [], 0
    if any(p.device.type == "meta" for p in model.parameters()):
        return [Proof(reason="no numbers on the meta device") for _ in described], 0
    proofs = _run(model, batch, described, links, wrong)
    runs = 1
    # One branch's end may be another's inside: what the common run left open is tried together, then one by one.
    rounds = [[k for k, p in enumerate(proofs) if not p.holds]]
    rounds += [[k] for k in rounds[0]] if len(rounds[0]) > 1 else []
    for chosen in rounds:
        still = [k for k in chosen if not proofs[k].holds]
        if not still or len(still) == len(described) or runs > _MOST_SINGLE_RUNS:
            continue
        for k, again in zip(still, _run(model, batch, [described[k] for k in still], links, wrong), strict=True):
            if again.error is not None:
                proofs[k] = again
        runs += 1
    return proofs, runs


def _run(
    model: nn.Module, batch: Batch, described: Sequence[Described], links: Links, wrong: Sequence[str]
) -> list[Proof]:
    args, kwargs = copied(call_arguments(batch))
    watched = [_Watched(unit, links, ("", *wrong)) for unit in described]
    failure = ""
    with preserved(model), eager(), ModuleStack(model) as stack, torch.no_grad():
        mode = _Replacement(watched, links, stack)
        mode.inputs(tensors_of((args, kwargs)))
        try:
            with mode, _Unfused():
                model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # noise may take a model where it fails; units are then tried alone
            failure = f"the model failed on replaced values: {type(error).__name__}: {error}".splitlines()[0]
    for unit in watched:
        if unit.proof.error is None and not unit.proof.reason:
            unit.proof.reason = failure or "the run with replaced values did not come to its join"
    return [unit.proof for unit in watched]


class _Unfused(TorchFunctionMode):
    """Its presence alone switches off fused paths, as in the recorded run."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class _Watched:
    """One unit during a replacement run: its copy of x, its noise, its predictions."""

    def __init__(self, unit: Described, links: Links, variants: Sequence[str]) -> None:
        self.unit, self.links, self.nodes = unit, links, links.nodes
        self.variants = variants
        self.proof = Proof()
        self.values: dict[str, dict[int, torch.Tensor]] = {v: {} for v in variants}
        self.noise: dict[int, torch.Tensor] = {}
        self.sides: dict[int, torch.Tensor] = {}
        self.size_of_x = 0.0
        self.silent = False
        self.generator = torch.Generator().manual_seed(unit.candidate.join)

    def take_x(self, x: torch.Tensor) -> None:
        """Keep a private copy of x."""
        self.size_of_x = _rms(x)
        for variant in self.variants:
            value = x.clone()
            if variant == "x":
                value = value.flip(0) * 1.1 if x.shape and x.shape[0] > 1 else value * 1.1
            self.values[variant][self.unit.candidate.x] = value

    def noise_for(self, tail: Tail, output: torch.Tensor) -> torch.Tensor:
        """R: as large that s·R is a sixteenth of x."""
        scale = 1.0
        for i in tail.nodes:
            node = self.nodes[i]
            size, scalar = node.attrs.get("size"), node.attrs.get("scalar")
            factor = abs(float(size if size is not None else scalar if scalar is not None else 1.0))
            self.silent |= factor == 0.0  # a scale of exactly 0 hides every mistake in s
            factor = factor or 1.0
            scale *= 1.0 / factor if node.op == "div" else factor
        top = torch.finfo(output.dtype).max if output.is_floating_point() else 1.0
        amplitude = min((self.size_of_x or 1.0) * _NOISE / scale, math.sqrt(top))
        noise = torch.randn(output.shape, generator=self.generator, dtype=torch.float32) * amplitude
        if self.unit.candidate.merge == "multiply":
            noise = 1.0 + noise * (_NOISE / amplitude)  # factors around 1 leave a long product finite
        noise = noise.to(output.device, output.dtype)
        self.noise[tail.output] = noise
        for variant in self.variants:
            value = noise * 1.1 if variant == "s" else noise
            self.values[variant][tail.output] = value.clone()
        return noise

    def join(self, weight: torch.Tensor | float | None) -> None:
        """Predict the value of the merge."""
        unit, root = self.unit, self.nodes[self.unit.candidate.join]
        candidate = unit.candidate
        for variant in self.variants:
            values = self.values[variant]
            h = self._shortcut(values)
            if h is None:
                self.proof.reason = "its shortcut was not seen being computed"
                return
            if variant == "h":
                h = h * 0.9
            if candidate.merge != "add":
                branch = values.get(unit.tails[0].term.node)
                if branch is None:
                    self.proof.reason = "its branch's output was not seen being replaced"
                    return
                if candidate.merge == "multiply":
                    values[candidate.join] = (h * branch).to(root.dtype)
                else:
                    sides = (h, branch) if candidate.shortcut.position == 0 else (branch, h)
                    values[candidate.join] = torch.cat(sides, dim=root.attrs.get("dim", 0))
                continue
            total = self._placed(h, root) * self._factor(candidate.shortcut.node, candidate.shortcut.add, weight, 0)
            for tail in unit.tails:
                value = values.get(tail.term.node, values.get(tail.output) if not self._real(tail.nodes) else None)
                if value is None:
                    self.proof.reason = "its branch's output was not seen being replaced"
                    return
                total = total + self._placed(value, root) * self._factor(tail.term.node, tail.term.add, weight, 1)
            for term in candidate.sides:
                total = total + self._placed(self.sides[term.node], root) * self._factor(term.node, term.add, None, 1)
            values[candidate.join] = total.to(root.dtype)

    def _real(self, nodes: Sequence[int]) -> list[int]:
        """Nodes that are operations of their own (parts of a fused addition are not)."""
        return [i for i in nodes if not _is_fused_part(self.nodes[i])]

    def _shortcut(self, values: dict[int, torch.Tensor]) -> torch.Tensor | None:
        real = self._real(self.unit.shortcut_nodes)
        return values.get(real[-1] if real else self.unit.candidate.x)

    @staticmethod
    def _placed(value: torch.Tensor, root: Node) -> torch.Tensor:
        """A term in the shape in which it enters the join."""
        same = value.numel() == math.prod(root.shape)
        return value.reshape(root.shape) if same and tuple(value.shape) != root.shape else value

    def _factor(self, term: int, add: int, weight: torch.Tensor | float | None, side: int) -> torch.Tensor | float:
        """What the join itself multiplies a term by."""
        node = self.nodes[add]
        fused = node.attrs.get("fused", "")
        if fused == "lerp" and weight is not None:
            return weight if side else 1 - weight
        if fused.startswith("stack-mean"):
            return 1.0 / len(node.inputs)
        position = node.inputs.index(term) if term in node.inputs else 1
        factor: Any = 1.0
        if fused in ("addmm", "baddbmm", "addbmm", "addmv"):
            factor = node.attrs.get("beta" if position == 0 else "alpha", 1)
        elif fused in ("addcmul", "addcdiv"):
            factor = node.attrs.get("value", 1) if position else 1
            if position and isinstance(weight, torch.Tensor):
                factor = factor * weight
        elif not fused and position == 1:
            factor = node.attrs.get("alpha", 1)
            factor = -factor if node.op == "sub" else factor
        elif node.op == "rsub":
            factor = -1
        return factor if isinstance(factor, (int, float, torch.Tensor)) else 1.0

    def check(self, actual: torch.Tensor) -> None:
        """Compare the stream behind the unit with the predictions."""
        end, join = self.unit.end, self.unit.candidate.join
        if not bool(actual.isfinite().all()):
            self.proof.reason = "the stream was not finite in the run with replaced values"
            return
        for variant in self.variants:
            values = self.values[variant]
            if end not in values:
                if not variant and not self.proof.reason:
                    self.proof.reason = "what follows its join was not seen being computed"
                continue
            predicted = values[end]
            if variant == "f":
                without = values[join] if end != join else torch.relu(predicted)
                same_shape = without.shape == predicted.shape
                changes = same_shape and _error(predicted, without) > 1e-2 / torch.finfo(actual.dtype).eps
                # Where leaving f out changes nothing (a ReLU on a positive stream), the mistake is a factor.
                predicted = without if changes else predicted * 1.1
            error = _error(actual, predicted)
            if variant:
                if not (variant == "s" and self.silent):
                    self.proof.wrong[variant] = error
            else:
                self.proof.error = error
                if error > BOUND_EPS:
                    self.proof.reason = f"the run with replaced values differs from its formula by {error:.3g} eps"


class _Replacement(TorchDispatchMode):
    """Replaces branch outputs and computes predictions as the model runs."""

    def __init__(self, watched: list[_Watched], links: Links, stack: ModuleStack) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        self.watched, self.nodes, self.graph = watched, links.nodes, links.graph
        self._stack = stack
        self._ordinals: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._plan: defaultdict[Place, list[int]] = defaultdict(list)
        self._roles: defaultdict[int, list[tuple[str, _Watched, Tail | None]]] = defaultdict(list)
        self._readers: defaultdict[Place, list[tuple[int, int, _Watched]]] = defaultdict(list)
        for unit in watched:
            self._enlist(unit, links)
        for i in sorted(self._roles):
            node = self.nodes[i]
            if node.source:
                self._plan[self.graph.place(node)].append(i)

    def _enlist(self, unit: _Watched, links: Links) -> None:
        described = unit.unit
        candidate = described.candidate
        self._roles[candidate.x].append(("x", unit, None))
        if not self.nodes[
            candidate.x
        ].source:  # a leaf, or an alias read without an operation: taken from its first reader
            for c in sorted(links.consumers[candidate.x]):
                node = self.nodes[c]
                if node.source and not node.attrs.get("fused"):
                    self._readers[self.graph.place(node)].append((c, candidate.x, unit))
                    break
        for i in described.shortcut_nodes:
            self._roles[i].append(("step", unit, None))
        for tail in described.tails:
            self._roles[tail.output].append(("output", unit, tail))
            for i in tail.nodes:
                self._roles[i].append(("step", unit, tail))
        for term in candidate.sides:
            self._roles[term.node].append(("side", unit, None))
        self._roles[candidate.join].append(("join", unit, None))
        for i in described.after_nodes:
            self._roles[i].append(("step", unit, None))
        self._roles[described.end].append(("end", unit, None))

    def inputs(self, tensors: list[torch.Tensor]) -> None:
        """Take x where it is the model's input itself."""
        leaves = [n for n in self.nodes if n.op == "input"]
        for node, tensor in zip(leaves, tensors, strict=False):
            for role, unit, _ in self._roles.get(node.id, ()):
                if role == "x":
                    unit.take_x(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        op = operation(func).op
        top = self._stack.top
        ordinal = self._ordinals[top, op]
        self._ordinals[top, op] = ordinal + 1
        call = self._stack.calls[top]
        place = Place(call.path, call.number, op, ordinal)
        for node_id, x, unit in self._readers.get(place, ()):
            tensors = flat_tensors(args, kwargs)
            at = self.nodes[node_id].inputs.index(x)
            if x not in unit.values[""] and at < len(tensors):
                unit.take_x(tensors[at])
        planned = self._plan.get(place)
        if planned is None:
            return func(*args, **kwargs)
        for i in planned:
            self._before(self.nodes[i], func, args, kwargs)
        out = func(*args, **kwargs)
        for i in planned:
            out = self._after(self.nodes[i], args, kwargs, out)
        return out

    def _before(self, node: Node, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Apply a step to private copies, while its other operands still have their values."""
        if _is_fused_part(node):
            return
        for role, unit, _ in self._roles[node.id]:
            if role != "step":
                continue
            for values in unit.values.values():
                if any(i in values for i in node.inputs) and node.id not in values:
                    values[node.id] = _applied(node, func, args, kwargs, values)

    def _after(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """Compare where units end here, then replace where branches end, then take what others start from."""
        roles = self._roles[node.id]
        for role, unit, _ in roles:
            if role == "step" and _is_random(node):
                for values in unit.values.values():
                    _same_mask(node, values, out)
            elif role == "join":
                self._join(node, unit, args, kwargs, out)
        for role, unit, _ in roles:
            if role == "end":
                unit.check(_result(node, args, out))
        for role, unit, tail in roles:
            if role == "output" and tail is not None and not _is_fused_part(node) and tail.output not in unit.noise:
                self._replace(unit, tail, _result(node, args, out))
        for role, unit, _ in roles:
            if role == "x":
                unit.take_x(_result(node, args, out))
            elif role == "side":
                unit.sides[node.id] = _result(node, args, out).clone()
        return out

    def _replace(self, unit: _Watched, tail: Tail, output: torch.Tensor) -> None:
        """Put noise where a branch's output was; an output shared by two joins is replaced once."""
        other = next((w for w in self.watched if w is not unit and tail.output in w.noise), None)
        if other is None:
            output.copy_(unit.noise_for(tail, output))
            return
        unit.noise[tail.output] = noise = other.noise[tail.output]
        for values in unit.values.values():
            values[tail.output] = noise.clone()

    def _join(self, node: Node, unit: _Watched, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        fused = node.attrs.get("fused", "")
        weight: torch.Tensor | float | None = None
        if fused == "lerp":
            weight = args[2] if len(args) > 2 else kwargs.get("weight")
        elif fused == "addcmul":
            weight = args[2]
        elif fused in ("addmm", "baddbmm", "addbmm", "addmv"):
            for tail in unit.unit.tails:
                if _is_fused_part(self.nodes[tail.output]):  # F's output exists nowhere: put R where the sum is made
                    noise = unit.noise_for(tail, out)
                    out.copy_(args[0] * node.attrs.get("beta", 1) + noise * node.attrs.get("alpha", 1))
        unit.join(weight)


def _is_fused_part(node: Node) -> bool:
    """Whether a node is one half of an operation that also adds."""
    return node.source in _FUSED and node.op not in ("add", node.source)


def _is_random(node: Node) -> bool:
    return "dropout" in node.op


def _same_mask(node: Node, values: dict[int, torch.Tensor], out: Any) -> None:
    """Dropout draws anew at each call: give the copy the mask that the model drew."""
    source = next((values[i] for i in node.inputs if i in values), None)
    if source is None or not isinstance(out, (tuple, list)) or len(out) < 2:
        return
    p = node.attrs.get("p", 0.0)
    values[node.id] = source * out[1] / (1.0 - p)


def _applied(
    node: Node, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: dict[int, torch.Tensor]
) -> torch.Tensor:
    """The value of one operation with copies in place of the model's tensors."""
    offset = 1 if node.source == "copy" and len(node.inputs) < len(flat_tensors(args, kwargs)) else 0
    replacements = {k + offset: values[i] for k, i in enumerate(node.inputs) if i in values}
    if node.op in VIEW and node.source == "copy":
        return next(iter(replacements.values())).clone()
    written = {id(t) for t in operation(func).written(args, kwargs)}
    tensors: list[torch.Tensor] = []
    for k, tensor in enumerate(flat_tensors(args, kwargs)):
        value = replacements.get(k, tensor)
        tensors.append(value.clone() if id(tensor) in written or k in replacements else value)
    supply = iter(tensors)
    new_args = tuple(_with_tensors(a, supply) for a in args)
    new_kwargs = {k: _with_tensors(v, supply) for k, v in kwargs.items()}
    return _result(node, new_args, func(*new_args, **new_kwargs))


def _with_tensors(value: Any, supply: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return next(supply)
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(v, supply) for v in value)
    return value


def _result(node: Node, args: tuple[Any, ...], out: Any) -> torch.Tensor:
    """The tensor that a node stands for, among the outputs of its operation."""
    if isinstance(out, torch.Tensor):
        return out
    if isinstance(out, (tuple, list)) and out:
        part = out[node.attrs.get("part", 0)]
        if isinstance(part, torch.Tensor):
            return part
    return next(t for t in flat_tensors(args, {}))


def _rms(tensor: torch.Tensor) -> float:
    if not tensor.numel():
        return 0.0
    value = float(tensor.detach().abs().float().square().mean().sqrt())
    return value if math.isfinite(value) else 0.0


def _error(actual: torch.Tensor, predicted: torch.Tensor) -> float:
    """Relative error (Euclidean norm) in eps of the actual tensor's dtype."""
    if actual.shape != predicted.shape:
        return math.inf
    dtype = torch.complex128 if actual.is_complex() else torch.float64
    a, b = actual.to(dtype), predicted.to(dtype)
    error = float((a - b).norm()) / (float(a.norm()) or 1.0)
    eps = torch.finfo(actual.dtype).eps
    return error / eps if math.isfinite(error) else math.inf
