"""Taps: where to read the stream in a run with gradients, and how to reduce what is read there.

Shapes: N samples, C channels, H height, W width, T tokens, D width of the stream. A tensor is reduced where it is
seen, and its gradient where it comes by; nothing but scalars is kept.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from skipway.trace.addressed import AddressedMode
from skipway.trace.batch import output_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.utils.hooks import RemovableHandle

    from skipway.trace.graph import Address, Node
    from skipway.trace.modules import ModuleStack
    from skipway.units.describe import Described
    from skipway.units.find import Term
    from skipway.units.links import Links

__all__ = ["Reader", "Scalars", "Tap", "Taps", "norm", "plan_taps", "similarity", "tap_inputs"]


class Scalars:
    """Scalars that stay on the device until all are read at once.

    Hooks on tensors hold this and nothing that holds a tensor: they would keep each other alive.
    """

    wanted: frozenset[str] | None = None
    """Names of the numbers to take; all if None."""
    in_forward: bool = False
    """Whether the model still computes its output: gradients that come by are those that it takes itself."""

    def __init__(self) -> None:
        self._values: list[torch.Tensor] = []
        self._keys: list[tuple[int, str]] = []
        self._on_leaves: list[RemovableHandle] = []  # a parameter, an input: they outlive the run

    def put(self, unit: int, name: str, value: torch.Tensor) -> None:
        """Keep a scalar under the number of its unit and its name; inside of `torch.func` there is none to keep."""
        if _is_wrapped(value):
            return
        self._keys.append((unit, name))
        exact = torch.float32 if value.device.type == "mps" else torch.float64
        self._values.append(value.detach().to(exact))

    def wants(self, name: str) -> bool:
        """Whether a number is to be taken."""
        return self.wanted is None or name in self.wanted

    def narrow(self, x: torch.Tensor) -> torch.Tensor:
        """What of a tensor is looked at: all of it."""
        return x

    def size(self, x: torch.Tensor) -> torch.Tensor:
        """L2 norm of what was read in the forward run."""
        return norm(x)

    def rms(self, x: torch.Tensor) -> torch.Tensor:
        """Root mean square."""
        return self.size(x) / math.sqrt(max(x.numel(), 1))

    def take(
        self, unit: int, name: str, reduce: Callable[[torch.Tensor], torch.Tensor | None], x: torch.Tensor
    ) -> None:
        """Reduce a tensor to a number and keep it, if it is wanted and there is such a number."""
        if self.wants(name):
            value = reduce(x)
            if value is not None:
                self.put(unit, name, value)

    def await_gradient(self, tensor: torch.Tensor, unit: int, name: str) -> None:
        """Keep the norm of a tensor's gradient when it comes by."""
        handle = tensor.register_hook(partial(self.gradient, unit, name))
        if tensor.is_leaf:
            self._on_leaves.append(handle)

    def gradient(self, unit: int, name: str, gradient: torch.Tensor) -> None:
        """Keep the norm of a gradient that came by."""
        if self.in_forward:
            return
        self.take(unit, name, norm, self.narrow(gradient.detach()))

    def let_go(self) -> None:
        """Wait for no gradient any more."""
        while self._on_leaves:
            self._on_leaves.pop().remove()

    def read(self) -> dict[int, dict[str, float]]:
        """All scalars, by unit and name; one transfer from the device."""
        self.let_go()
        found: dict[int, dict[str, float]] = defaultdict(dict)
        if self._values:
            for (unit, name), value in zip(self._keys, torch.stack(self._values).tolist(), strict=True):
                found[unit].setdefault(name, value)  # where a place is passed twice, the first time counts
        return found


def _is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for many of a `torch.func` transformation (vmap, grad), and cannot be read outside."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))  # noqa: SLF001  # nothing public says it


@dataclass(frozen=True, slots=True)
class Tap:
    """What to read at a function call: of which unit (or layer), in which role, at which operand."""

    owner: int
    role: str
    node: int
    position: int = -1


class Reader:
    """Reads tensors at function calls that the recorded run names."""

    def __init__(self, links: Links, scalars: Scalars) -> None:
        self._nodes, self._scalars = links.nodes, scalars
        self._held: dict[int, torch.Tensor] = {}
        self.roots: dict[int, torch.Tensor] = {}
        self.cut: set[int] = set()
        self.barred: set[int] = set()
        """Units whose shortcut needs no gradient although their branch does."""
        self.constant: set[int] = set()
        """Units whose x was seen and needs no gradient."""

    def before(self, planned: list[Tap], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Read the operands of a call."""
        with torch.no_grad():
            for tap in planned:
                if tap.role == "operands":
                    self._operands(tap, args, kwargs)
                elif tap.role == "x operand":
                    operands = [a for a in args if isinstance(a, torch.Tensor)]
                    if tap.position < len(operands):
                        self.read(
                            Tap(tap.owner, "x", self._nodes[tap.node].inputs[tap.position]), operands[tap.position]
                        )
                elif tap.role == "parts":
                    self._parts(tap, args)
                elif tap.role == "shortcut":
                    self._hold(tap, args)

    def after(self, planned: list[Tap], out: Any) -> None:
        """Read the result of a call."""
        for tap in planned:
            result = self.matching(out, self._nodes[tap.node])
            if result is not None:
                self.read(tap, result)

    def read(self, tap: Tap, tensor: torch.Tensor) -> None:
        """Reduce one tensor, and its gradient when it comes."""
        take, rms = self._scalars.take, self._scalars.rms
        with torch.no_grad():
            value = self._scalars.narrow(tensor.detach())
            if tap.role == "x":
                take(tap.owner, "stream_rms", rms, value)
            elif tap.role == "end":
                take(tap.owner, "out_rms", rms, value)
                take(tap.owner, "similarity", similarity, value)
            elif tap.role == "layer":
                take(tap.owner, "rms", rms, value)
            elif tap.role == "join" and tap.owner in self._held:
                shortcut = self._held.pop(tap.owner)
                self.compare(tap.owner, shortcut, value - shortcut)
        name = {"x": "grad_stream", "join": "grad_branch", "layer": "grad"}.get(tap.role)
        if name is None or not tensor.requires_grad:
            if tap.role == "x":
                self.constant.add(tap.owner)
            return
        if tap.role in ("x", "layer"):
            self.roots.setdefault(tap.node, tensor)
        if self._scalars.wants(name):
            self._scalars.await_gradient(tensor, tap.owner, name)

    def matching(self, out: Any, node: Node) -> torch.Tensor | None:
        """The tensor of a function's result that a node stands for: the part it is, or the first of its shape."""
        tensors = output_tensors(out)
        part = node.attrs.get("part")
        if part is not None:
            tensors = tensors[part : part + 1]
        return next((t for t in tensors if tuple(t.shape) == node.shape), None)

    def _operands(self, tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        if not all(a.is_floating_point() or a.is_complex() for a in given):
            return  # lengths, indices: one of its arguments is no operand
        node = self._nodes[tap.node]
        if len(given) == 2:
            along, beside = given[tap.position].requires_grad, given[1 - tap.position].requires_grad
            if along and not beside:
                self.cut.add(tap.owner)  # its branch ran under no_grad, or was detached
            elif beside and not along:
                self.barred.add(tap.owner)
        operands = [a.detach() for a in given]
        fused = node.attrs.get("fused", "")
        if fused.startswith("stack") and len(node.inputs) == 2 and operands:
            operands = _unstacked(operands[0], node, args, kwargs)
            fused = ""
        if len(operands) < 2 or (fused and fused not in ("lerp", "addcmul")):
            return
        alpha = kwargs.get("alpha", 1)
        if node.op == "sub":
            alpha = -alpha
        first, second = operands[0], operands[1] * alpha if alpha != 1 else operands[1]
        if fused == "lerp":
            weight = args[2] if len(args) > 2 else kwargs["weight"]
            first, second = first * (1 - weight), second * weight
        elif fused == "addcmul":
            second = operands[1] * operands[2] * kwargs.get("value", 1)
        shortcut, branch = (first, second) if tap.position == 0 else (second, first)
        self.compare(tap.owner, self._scalars.narrow(shortcut), self._scalars.narrow(branch))

    def _hold(self, tap: Tap, args: tuple[Any, ...]) -> None:
        """Where several branches join in turn: the branch is what the whole sum holds beside the shortcut."""
        operands = [a.detach() for a in args if isinstance(a, torch.Tensor)]
        if tap.position < len(operands):
            self._held[tap.owner] = self._scalars.narrow(operands[tap.position]).clone()

    def _parts(self, tap: Tap, args: tuple[Any, ...]) -> None:
        """Of a concatenation: the branch is its last part (or its first), the shortcut the rest."""
        parts = [self._scalars.narrow(t.detach()) for t in tensors_of(args)]
        if len(parts) < 2:
            return
        branch = parts.pop(0 if tap.position == 0 else -1)
        size = sum(p.numel() for p in parts)
        shortcut = torch.stack([self._scalars.size(p) for p in parts]).norm()
        self._scalars.put(tap.owner, "shortcut_rms", shortcut / math.sqrt(max(size, 1)))
        self._scalars.put(tap.owner, "branch_rms", self._scalars.rms(branch))

    def compare(self, owner: int, shortcut: torch.Tensor, branch: torch.Tensor) -> None:
        """Sizes of shortcut and branch, and the cosine between them."""
        put = self._scalars.put
        a, b = self._scalars.size(shortcut), self._scalars.size(branch)
        put(owner, "shortcut_rms", a / math.sqrt(max(shortcut.numel(), 1)))
        put(owner, "branch_rms", b / math.sqrt(max(branch.numel(), 1)))
        if shortcut.shape == branch.shape and self._scalars.wants("cosine"):
            put(owner, "cosine", _cosine(shortcut, branch, a, b))


class Taps(AddressedMode[list[Tap]], Reader):
    """A mode that reads where the recorded run says that tensors are made."""

    def __init__(self, plan: dict[Address, list[Tap]], links: Links, stack: ModuleStack, scalars: Scalars) -> None:
        AddressedMode.__init__(self, plan, stack)
        Reader.__init__(self, links, scalars)

    def at(self, planned: list[Tap], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call and read its operands and its result."""
        self.before(planned, args, kwargs)
        out = func(*args, **kwargs)
        self.after(planned, out)
        return out


def plan_taps(described: Sequence[Described], layers: list[int], links: Links) -> dict[Address, list[Tap]]:
    """What to read at which function call: of a unit x, the operands, the join and the end; of a layer its result."""
    last = {node.caller: node.id for node in links.nodes if node.caller is not None}
    plan: defaultdict[Address, list[Tap]] = defaultdict(list)

    def at_result(owner: int, role: str, i: int) -> bool:
        node = links.nodes[i]
        address = links.graph.address(node)
        if address is None or node.caller is None or not _is_result(i, last[node.caller], links):
            return False
        result = links.nodes[last[node.caller]]
        same = links.strip(result.id) == links.strip(
            i
        )  # a linear layer on tokens makes a matrix, and returns a view of it
        plan[address].append(Tap(owner, role, result.id if same else i))
        return True

    for k, unit in enumerate(described):
        candidate = unit.candidate
        x_is_read = at_result(k, "x", candidate.x) or links.nodes[candidate.x].op == "input"
        at_result(k, "join", candidate.join)
        at_result(k, "end", unit.end)
        add = links.nodes[candidate.shortcut.add]
        address = links.graph.address(add)
        if address is None:
            continue
        if not x_is_read and not add.attrs.get("fused") and set(candidate.route.kinds()) <= {"view"}:
            plan[address].append(Tap(k, "x operand", add.id, candidate.shortcut.position))
        if candidate.merge == "concat":
            plan[address].append(Tap(k, "parts", add.id, candidate.branches[0].position))
        elif len(candidate.branches) == 1 and not candidate.sides:
            plan[address].append(Tap(k, "operands", add.id, _operand(candidate.shortcut, add)))
        elif add.op == "add" and not add.attrs.get("fused"):
            plan[address].insert(0, Tap(k, "shortcut", add.id, candidate.shortcut.position))
    for k, i in enumerate(layers):
        at_result(len(described) + k, "layer", i)
    return plan


def _unstacked(stack: torch.Tensor, join: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The two parts of ``stack([a, b]).sum(dim)`` (of its mean: their halves)."""
    dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
    dim = dims[0] if isinstance(dims, (tuple, list)) and len(dims) == 1 else dims
    if not isinstance(dim, int) or stack.shape[dim] != len(join.inputs):
        return []
    share = 1.0 / len(join.inputs) if join.attrs["fused"] == "stack-mean" else 1.0
    return [part * share for part in stack.unbind(dim)]


def _operand(term: Term, add: Node) -> int:
    return 0 if add.attrs.get("fused") and term.node == add.inputs[0] else term.position


def _is_result(i: int, last: int, links: Links) -> bool:
    """Whether the last node made in a function call holds what node i holds."""
    node, final = links.nodes[i], links.nodes[last]
    if "part" in node.attrs and node.source == final.source and node.ordinal == final.ordinal:
        return True
    return i == last or links.strip(last) == links.strip(i) or final.attrs.get("extra", False)


def tap_inputs(reader: Reader, described: Sequence[Described], links: Links, tensors: list[torch.Tensor]) -> None:
    """Read x where it is the model's input itself."""
    leaves = [n.id for n in links.nodes if n.op == "input"]
    by_leaf = dict(zip(leaves, tensors, strict=False))
    for k, unit in enumerate(described):
        if unit.candidate.x in by_leaf:
            reader.read(Tap(k, "x", unit.candidate.x), by_leaf[unit.candidate.x])


def similarity(x: torch.Tensor) -> torch.Tensor | None:
    """Mean cosine between different tokens (N,T,D) or channels (N,C,H,W) of one sample; None for other shapes.

    With unit vectors u it is (‖Σu‖² − T) / (T(T−1)): linear in the number of tokens.
    """
    if x.dim() == 4 and x.shape[2] * x.shape[3] > 1:
        x = x.flatten(2)
    if x.dim() != 3 or x.shape[1] < 2 or not x.is_floating_point():
        return None
    count = x.shape[1]
    x = x if x.dtype == torch.float64 else x.float()
    # A norm along strides (channels-last) takes three times as long as squares and their sum.
    sizes = torch.linalg.vector_norm(x, dim=-1) if x.stride(-1) == 1 else x.square().sum(-1).sqrt()
    together = (x / sizes.clamp_min(1e-12).unsqueeze(-1)).sum(1)
    return ((together.square().sum(-1) - count) / (count * (count - 1))).mean()


def norm(x: torch.Tensor) -> torch.Tensor:
    """L2 norm, squared and summed in double precision where the device has it: a stream may be as large as 1e30."""
    wide = torch.complex128 if x.is_complex() else torch.float64
    found: torch.Tensor = torch.linalg.vector_norm(x, dtype=None if x.device.type == "mps" else wide)
    return found


def _cosine(a: torch.Tensor, b: torch.Tensor, size_a: torch.Tensor, size_b: torch.Tensor) -> torch.Tensor:
    """Cosine of two tensors of known norms: unit vectors first, so that no product overflows or vanishes."""
    wide = a.dtype in (torch.float64, torch.complex128)
    x, y = (a / size_a, b / size_b) if wide or a.is_complex() else (a.float() / size_a, b.float() / size_b)
    return (x * y.conj()).real.sum().clamp(-1.0, 1.0)
