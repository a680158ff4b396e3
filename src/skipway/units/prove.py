"""Prove units: run the model again with every branch's output replaced by noise, and predict what must follow.

In that run F's output is a random tensor R. If a unit's formula is right, the stream behind it is ``f(h(x) ⊕ s·R)``,
with x as it was when it was made. The prediction applies the formula's own operations to a private copy of x and to R;
the model never sees the copy. A wrong x, h, f or s makes the prediction miss. One run proves all units, since each
prediction starts from the x that this run has; units that this run does not reach (routing that depends on values) are
tried one by one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from skipway.trace.batch import Batch, call_arguments, copied, tensors_of
from skipway.trace.mode import with_gradients
from skipway.trace.modules import ModuleStack, eager
from skipway.trace.operation import flat_tensors, operation
from skipway.trace.ops import ADDS_MATMUL, ADDS_PRODUCT, VIEW
from skipway.trace.placed import PlacedMode
from skipway.trace.preserve import preserved
from skipway.trace.unfused import Unfused
from skipway.units.prediction import BOUND_EPS, Proof, Watched, is_fused_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.trace.graph import Node, Place
    from skipway.units.describe import Described, Tail
    from skipway.units.links import Links

__all__ = ["BOUND_EPS", "WRONG", "Proof", "prove"]


WRONG: Final = ("x", "h", "f", "s")
"""Deliberate mistakes that a prediction can be made with, to show that it would miss."""

# Runs spent on single units when the common run does not decide them.
_MOST_SINGLE_RUNS: Final = 64


def prove(
    model: nn.Module,
    batch: Batch,
    described: Sequence[Described],
    links: Links,
    *,
    wrong: Sequence[str] = (),
    keep_parameters: bool = False,
) -> tuple[list[Proof], int]:
    """Prove units of a recorded run; returns a proof for each and the number of forward runs that it took.

    Args:
        model: the module that was recorded, in the mode in which it was recorded; left as it was.
        batch: the batch that was recorded.
        described: the units.
        links: relations of the recorded graph.
        wrong: deliberate mistakes, of `WRONG`, whose error is to be reported beside that of the right prediction.
        keep_parameters: put parameters back too, for a model that writes to them in forward.
    """
    if not described:
        return [], 0
    if any(p.device.type == "meta" for p in model.parameters()):
        return [Proof(reason="no numbers on the meta device") for _ in described], 0

    def run(chosen: Sequence[Described]) -> list[Proof]:
        with preserved(model, parameters=keep_parameters):
            return _run(model, batch, chosen, links, wrong)

    proofs = run(described)
    runs = 1
    # One branch's end may be another's inside: what the common run left open is tried together, then one by one.
    rounds = [[k for k, p in enumerate(proofs) if not p.holds]]
    rounds += [[k] for k in rounds[0]] if len(rounds[0]) > 1 else []
    for chosen in rounds:
        still = [k for k in chosen if not proofs[k].holds]
        if not still or len(still) == len(described) or runs > _MOST_SINGLE_RUNS:
            continue
        for k, again in zip(still, run([described[k] for k in still]), strict=True):
            if again.error is not None:
                proofs[k] = again
        runs += 1
    return proofs, runs


def _run(
    model: nn.Module, batch: Batch, described: Sequence[Described], links: Links, wrong: Sequence[str]
) -> list[Proof]:
    args, kwargs = copied(call_arguments(batch))
    watched = [Watched(unit, links, ("", *wrong)) for unit in described]
    failure = ""
    with eager(), ModuleStack(model) as stack, with_gradients(links.graph.takes_gradients):
        mode = _Replacement(watched, links, stack)
        mode.inputs(tensors_of((args, kwargs)))
        try:
            with mode, Unfused():
                model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # noise may take a model where it fails; units are then tried alone
            failure = f"the model failed on replaced values: {type(error).__name__}: {error}".splitlines()[0]
    for unit in watched:
        if unit.proof.error is None and not unit.proof.reason:
            unit.proof.reason = failure or "the run with replaced values did not come to its join"
    return [unit.proof for unit in watched]


class _Replacement(PlacedMode):
    """Replaces branch outputs and computes predictions as the model runs."""

    def __init__(self, watched: list[Watched], links: Links, stack: ModuleStack) -> None:
        super().__init__(stack)
        self.watched, self.nodes, self.graph = watched, links.nodes, links.graph
        self._plan: defaultdict[Place, list[int]] = defaultdict(list)
        self._roles: defaultdict[int, list[tuple[str, Watched, Tail | None]]] = defaultdict(list)
        self._readers: defaultdict[Place, list[tuple[int, int, Watched]]] = defaultdict(list)
        for unit in watched:
            self._enlist(unit, links)
        for i in sorted(self._roles):
            node = self.nodes[i]
            if node.source:
                self._plan[self.graph.place(node)].append(i)

    def _enlist(self, unit: Watched, links: Links) -> None:
        described = unit.unit
        candidate = described.candidate
        self._roles[candidate.x].append(("x", unit, None))
        if not self.nodes[candidate.x].source:
            # A leaf, or an alias read without an operation: taken from its first reader.
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
        place = self.place(func)
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
            self._after(self.nodes[i], args, kwargs, out)
        return out

    def _before(self, node: Node, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Apply a step to private copies, while its other operands still have their values."""
        if is_fused_part(node):
            return
        for role, unit, _ in self._roles[node.id]:
            if role != "step":
                continue
            for values in unit.values.values():
                if any(i in values for i in node.inputs) and node.id not in values:
                    values[node.id] = _applied(node, func, args, kwargs, values)

    def _after(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
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
            if role == "output" and tail is not None and not is_fused_part(node) and tail.output not in unit.noise:
                self._replace(unit, tail, _result(node, args, out))
        for role, unit, _ in roles:
            if role == "x":
                unit.take_x(_result(node, args, out))
            elif role == "side":
                unit.sides[node.id] = _result(node, args, out).clone()

    def _replace(self, unit: Watched, tail: Tail, output: torch.Tensor) -> None:
        """Put noise where a branch's output was; an output shared by two joins is replaced once."""
        other = next((w for w in self.watched if w is not unit and tail.output in w.noise), None)
        if other is None:
            output.copy_(unit.noise_for(tail, output))
            return
        unit.noise[tail.output] = noise = other.noise[tail.output]
        for values in unit.values.values():
            values[tail.output] = noise.clone()

    def _join(self, node: Node, unit: Watched, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        fused = node.attrs.get("fused", "")
        weight: torch.Tensor | float | None = None
        if fused == "lerp":
            weight = args[2] if len(args) > 2 else kwargs.get("weight")
        elif fused in ADDS_PRODUCT:
            product = self.nodes[node.inputs[1]]
            branch_is_second = self.nodes[product.inputs[0]].data
            weight = args[2] if branch_is_second else args[1]
            if fused == "addcdiv" and branch_is_second:
                weight = 1.0 / weight
        elif fused in ADDS_MATMUL:
            for tail in unit.unit.tails:
                if is_fused_part(self.nodes[tail.output]):  # F's output exists nowhere: put R where the sum is made
                    noise = unit.noise_for(tail, out)
                    out.copy_(args[0] * node.attrs.get("beta", 1) + noise * node.attrs.get("alpha", 1))
        unit.join(weight)


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
