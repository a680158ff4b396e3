"""A function mode that marks the operands of joins, and notes where in the autograd graph the stream begins and ends.

Marking leaves every number as it is: outputs are bit-identical, also where a join writes in place or into a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.autograd.graph import get_gradient_edge

from skipway.diagnostics.path_spectrum.marks import Site, Switch, mark
from skipway.trace.addressed import AddressedMode
from skipway.trace.batch import output_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.graph import GradientEdge

    from skipway.diagnostics.path_spectrum.plan import Act, Plan
    from skipway.trace.graph import Node
    from skipway.trace.modules import ModuleStack
    from skipway.units.links import Links

__all__ = ["Kind", "Marks", "Place"]


Kind = Literal["plain", "marked", "cut"]


class Place:
    """Where a tensor stands in the autograd graph: differentiable also after the tensor was written to.

    What is a view of a whole tensor is read there: if it is written to in place, its own node is no longer passed.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        base = tensor._base  # noqa: SLF001  # PyTorch has no public name for what a view is a view of
        if base is None or base.numel() != tensor.numel() or not base.requires_grad:
            base = tensor
        self.edge: GradientEdge = get_gradient_edge(base)
        self._shape, self._strides, self._dtype, self._device = base.shape, base.stride(), base.dtype, base.device
        self._seen = tensor.shape, tensor.stride(), tensor.storage_offset() - base.storage_offset()

    def zeros(self) -> torch.Tensor:
        """No gradient."""
        return torch.zeros(self._shape, dtype=self._dtype, device=self._device)

    def as_seen(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient with respect to the whole tensor, in the shape of the view."""
        laid_out = torch.empty_strided(self._shape, self._strides, dtype=self._dtype, device=self._device)
        return laid_out.copy_(gradient).as_strided(*self._seen)


class Marks(AddressedMode[list["Act"]]):
    """Marks operands where the plan says, or cuts branches off, or only notes where the stream begins and ends.

    Args:
        plan: where.
        links: relations of the recorded graph.
        stack: an open module stack.
        kind: ``"plain"`` lets every call run as it is, ``"marked"`` marks its operands, ``"cut"`` detaches branches.
        switch: what all marks are handed to.
    """

    def __init__(self, plan: Plan, links: Links, stack: ModuleStack, kind: Kind, switch: Switch) -> None:
        super().__init__(plan.acts, stack)
        self._nodes, self._kind, self._switch = links.nodes, kind, switch
        self.x: Place | None = None
        self.end: Place | None = None
        self.sites: list[Site] = []
        self.passed: set[int] = set()
        """Units whose join was passed with its operands where they were expected, with gradients on."""

    def at(self, planned: list[Act], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call with its operands marked."""
        for act in planned:
            if act.kind == "x read" and self.x is None:
                self._read(act, args)
        marks = [act for act in planned if act.unit >= 0]
        sides = [act for act in marks if act.kind == "lerp"]
        if self._kind == "plain" or not torch.is_grad_enabled():
            marks, sides = [], []
        for act in marks:
            args, kwargs = self._marked(act, func, args, kwargs)
        out = self._interpolated(sides, func, args, kwargs) if sides else func(*args, **kwargs)
        for act in planned:
            if act.kind == "x" and self.x is None:
                out = self._begin(act, out)
            elif act.kind == "end":
                result = _matching(out, self._nodes[act.node])
                if result is not None and result.requires_grad:
                    self.end = Place(result)
        return out

    def _begin(self, act: Act, out: Any) -> Any:
        """Note x; where nothing before it is trained, it becomes the place where gradients end."""
        result = _matching(out, self._nodes[act.node])
        if result is not None and torch.is_grad_enabled():
            if not result.requires_grad and result is out and result.is_floating_point():
                out = result = result.detach().clone().requires_grad_().clone()
            if result.requires_grad:
                self.x = Place(result)
        return out

    def _read(self, act: Act, args: tuple[Any, ...]) -> None:
        """Note x where it is an operand."""
        operands = [a for a in args if isinstance(a, torch.Tensor)]
        at = act.positions[0]
        if at < len(operands) and tuple(operands[at].shape) == self._nodes[act.node].shape:
            self.x = Place(operands[at]) if operands[at].requires_grad else None

    # ---- operands

    def _marked(
        self, act: Act, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        node = self._nodes[act.node]
        if act.kind == "part":
            return self._parts(act, node, args, kwargs)
        operands = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        if act.kind == "operand" and self._fits(node, act, operands):
            self.passed.add(act.unit)
            for position in act.positions:
                old = operands[position]
                new = self._written(old, act) if position == 0 and _writes(func) else self._mark(old, act)
                args, kwargs = _exchanged(old, new, position, args, kwargs)
        return args, kwargs

    def _fits(self, node: Node, act: Act, operands: list[torch.Tensor]) -> bool:
        """Whether the operands are those of the recorded call."""
        if max(act.positions) >= len(operands):
            return False
        if act.positions == (1, 2):
            return True
        recorded = self._nodes[node.inputs[act.positions[0]]].shape
        return tuple(operands[act.positions[0]].shape) == recorded

    def _parts(
        self, act: Act, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Mark parts of what is concatenated, or of the stack that is summed."""
        first = args[0] if args else None
        if isinstance(first, (list, tuple)) and len(first) == len(node.inputs):
            self.passed.add(act.unit)
            parts = [self._mark(t, act) if k in act.positions else t for k, t in enumerate(first)]
            return (type(first)(parts) if type(first) in (list, tuple) else parts, *args[1:]), kwargs
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
        if isinstance(first, torch.Tensor) and isinstance(dim, int) and first.shape[dim] == len(node.inputs):
            self.passed.add(act.unit)
            parts = [self._mark(t, act) if k in act.positions else t for k, t in enumerate(first.unbind(dim))]
            return (torch.stack(parts, dim), *args[1:]), kwargs
        return args, kwargs

    def _interpolated(
        self, acts: list[Act], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        """lerp(a, b, w): its own value, with the gradient of a·(1 − w) + b·w, in which both sides can be marked."""
        a, b, *_ = operands = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        weight = args[2] if len(args) > 2 else kwargs["weight"]
        sides = [a * (1 - weight), b * weight]
        for act in acts:
            self.passed.add(act.unit)
            sides[act.positions[0]] = self._mark(sides[act.positions[0]], act)
        smooth = sides[0] + sides[1]
        with torch.no_grad():
            value = torch.lerp(a, b, weight)
        out = value + (smooth - smooth.detach())
        return operands[0].copy_(out) if _writes(func) else out

    def _mark(self, operand: torch.Tensor, act: Act) -> torch.Tensor:
        if not operand.requires_grad or (self._kind == "cut" and act.shortcut):
            return operand
        if self._kind == "cut":
            return operand.detach()
        site = Site(len(self.sites), act.unit, act.shortcut, self._switch)
        self.sites.append(site)
        return mark(operand, site)

    def _written(self, operand: torch.Tensor, act: Act) -> torch.Tensor:
        """An operand that the join writes to stays the tensor that others look at; what it holds passes the mark."""
        if operand.requires_grad:
            operand.copy_(self._mark(operand.clone(), act))
        return operand


def _writes(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")


def _exchanged(
    old: torch.Tensor, new: torch.Tensor, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the tensor at `position` (of all tensors among them) exchanged."""
    if old is new:
        return args, kwargs
    seen = -1
    exchanged = list(args)
    for k, value in enumerate(args):
        seen += isinstance(value, torch.Tensor)
        if seen == position:
            exchanged[k] = new
            return tuple(exchanged), kwargs
    for name, value in kwargs.items():
        seen += isinstance(value, torch.Tensor)
        if seen == position:
            return args, {**kwargs, name: new}
    raise AssertionError("the operand was counted among the arguments")


def _matching(out: Any, node: Node) -> torch.Tensor | None:
    """The tensor of a function's result that a node stands for: the part it is, or the first of its shape."""
    tensors = output_tensors(out)
    part = node.attrs.get("part")
    if part is not None:
        tensors = tensors[part : part + 1]
    return next((t for t in tensors if tuple(t.shape) == node.shape), None)
