"""The record of one run: operations as nodes of a graph, module calls as a tree.

A node is *data* when its value depends on the model's input (parameters, buffers, masks and constants are not). Fused
additions (``addmm``, ``addcmul``, ``lerp``, ``stack().sum()``) are split on entry, so that every join is an ``add``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skipway.trace.ops import ADDS_MATMUL, ADDS_PRODUCT, LOOKUP, RANDOM, SOURCELESS

if TYPE_CHECKING:
    import torch

__all__ = ["CONST", "PARAM", "RAND", "SPLIT_ON_ENTRY", "Address", "Graph", "ModuleCall", "Node", "Place"]

PARAM: Final = 1
CONST: Final = 2
RAND: Final = 4
SPLIT_ON_ENTRY: Final = RANDOM | SOURCELESS | ADDS_MATMUL | ADDS_PRODUCT | {"lerp", "sum", "mean"}
"""Operations that `Graph.add` does not take as they stand."""


class Place(NamedTuple):
    """Where an operation runs, the same in every run of one model in one mode.

    `ordinal` counts operations of one name within one call of one module, so it survives changes elsewhere.
    """

    path: str
    call: int
    op: str
    ordinal: int


class Address(NamedTuple):
    """Where a torch function is called: stable also between no-grad and grad runs, and between modes."""

    path: str
    call: int
    function: str
    ordinal: int


@dataclass(slots=True)
class ModuleCall:
    """One call of one module; shapes are those of its first tensor in and out (empty if there is none)."""

    id: int
    path: str
    number: int
    parent: int
    depth: int
    cls: str
    input_shape: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()


@dataclass(slots=True)
class Node:
    """One operation or leaf.

    Args:
        op: name in the vocabulary of `skipway.trace.ops`, or ``param``, ``const``, ``input``.
        inputs: ids of the tensors it reads, in argument order.
        attrs: the arguments that classification needs (alpha, scalar, stride …).
        data: whether the value depends on the model's input.
        taint: for values that do not: PARAM, CONST and RAND bits of where they come from.
        params: bit set of the parameters such a value was made from.
        source, ordinal: the operation it was recorded from (a fused one gives several nodes) and its count;
            see `Place`.
        caller: the torch function call it was made in, if any: module call, name, count; see `Address`.
    """

    id: int
    op: str
    inputs: list[int]
    attrs: dict[str, Any]
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    floating: bool
    call: int
    data: bool = False
    taint: int = 0
    params: int = 0
    source: str = ""
    ordinal: int = 0
    caller: tuple[int, str, int] | None = None
    flops: int = 0
    nbytes: int = 0


@dataclass
class Graph:
    """Nodes in order of execution, module calls, outputs.

    Args:
        overwrites: for every node that was written in place the node that the memory held before.
        takes_gradients: whether the model differentiates in its forward pass, so that it runs with gradients only.
    """

    nodes: list[Node] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=lambda: [ModuleCall(0, "", 0, -1, 0, "")])
    outputs: list[int] = field(default_factory=list)
    parameter_names: list[str] = field(default_factory=list)
    parameter_sizes: list[int] = field(default_factory=list)
    overwrites: dict[int, int] = field(default_factory=dict)
    takes_gradients: bool = False
    casts_carry_data: bool = False
    _chains: dict[int, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    def leaf(
        self,
        op: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        *,
        data: bool = False,
        taint: int = 0,
        params: int = 0,
    ) -> Node:
        """Add a parameter, constant or input."""
        node = Node(len(self.nodes), op, [], {}, shape, dtype, _is_floating(dtype), 0, data, taint, params)
        self.nodes.append(node)
        return node

    def add(
        self, op: str, inputs: list[int], attrs: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype, call: int
    ) -> Node:
        """Add an operation, splitting a fused addition into its parts; returns the node that holds the result."""
        nodes = self.nodes
        if op in RANDOM or op in SOURCELESS:
            node = self.new(op, [], attrs, shape, dtype, call)
            node.taint = RAND if op in RANDOM else CONST
            return node
        if op in ADDS_MATMUL and len(inputs) == 3 and nodes[inputs[0]].data:
            product = self.new(
                "mm" if op in ("addmm", "addmv") else "bmm", inputs[1:], dict(attrs), shape, dtype, call
            )  # fmt: skip
            return self.new("add", [inputs[0], product.id], {"fused": op, **attrs}, shape, dtype, call)
        if op in ADDS_PRODUCT and len(inputs) == 3:
            product = self.new("mul" if op == "addcmul" else "div", inputs[1:], dict(attrs), shape, dtype, call)
            return self.new("add", [inputs[0], product.id], {"fused": op, **attrs}, shape, dtype, call)
        if op == "lerp" and len(inputs) >= 2:
            weight = inputs[2:3]
            scalar = attrs.get("scalar")
            sides = [(1 - scalar) if scalar is not None else None, scalar]
            parts = [
                self.new(
                    "mul", [inputs[i], *weight],
                    {"lerp": "1-g" if i == 0 else "g", "scalar": sides[i], "synthetic": True}, shape, dtype, call,
                )
                for i in (0, 1)
            ]  # fmt: skip
            return self.new("add", [parts[0].id, parts[1].id], {"fused": "lerp", **attrs}, shape, dtype, call)
        if op in ("sum", "mean") and len(inputs) == 1 and self._sums_a_stack(nodes[inputs[0]], len(shape), attrs):
            stack = nodes[inputs[0]]
            return self.new("add", list(stack.inputs), {"fused": f"stack-{op}"}, shape, dtype, call)
        return self.new(op, inputs, attrs, shape, dtype, call)

    @staticmethod
    def _sums_a_stack(stack: Node, dims_left: int, attrs: dict[str, Any]) -> bool:
        if stack.op not in ("stack", "cat") or len(stack.inputs) < 2 or len(stack.shape) != dims_left + 1:
            return False
        at = stack.attrs.get("dim", 0)
        if stack.op == "cat" and stack.shape[at] != len(stack.inputs):
            return False  # only what was unsqueezed and concatenated is a stack
        dims = attrs.get("dim")
        if dims is None:
            return False
        dim = dims[0] if isinstance(dims, (list, tuple)) else dims
        return bool(dim % len(stack.shape) == at % len(stack.shape))

    def new(
        self, op: str, inputs: list[int], attrs: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype, call: int
    ) -> Node:
        """Add an operation as it stands."""
        nodes, floating = self.nodes, _is_floating(dtype)
        data, taint, params = self._carried(op, inputs, floating=floating)
        node = Node(len(nodes), op, inputs, attrs, shape, dtype, floating, call, data, taint, params)
        nodes.append(node)
        return node

    def _carried(self, op: str, inputs: list[int], *, floating: bool) -> tuple[bool, int, int]:
        """Whether a value is data, and its taint and parameters if it is not, from what it was made of."""
        data, taint, params = False, 0, 0
        nodes = self.nodes
        for i in inputs:
            source = nodes[i]
            if source.data:
                # int → float casts make masks, not data, unless nothing else would be data (one-hot inputs).
                if source.floating or not floating or op in LOOKUP or self.casts_carry_data:
                    data = True
            else:
                taint |= source.taint
                params |= source.params
        return data, taint, params

    def reseed(self) -> None:
        """If no output depends on the input as traced, let integer casts carry data and work it out again."""
        if not self.outputs or any(self.nodes[o].data for o in self.outputs):
            return
        self.casts_carry_data = True
        for node in self.nodes:
            if node.inputs:
                data, node.taint, node.params = self._carried(node.op, node.inputs, floating=node.floating)
                node.data = node.data or data

    def chain(self, call: int) -> tuple[int, ...]:
        """A module call and those around it, innermost first; kept, as it is asked for often and never changes."""
        known = self._chains.get(call)
        if known is None:
            known = self._chains[call] = (call, *self.chain(self.calls[call].parent)) if call >= 0 else ()
        return known

    def address(self, node: Node) -> Address | None:
        """Where a later run finds the torch function call that made a node."""
        if node.caller is None:
            return None
        at, function, ordinal = node.caller
        return Address(self.calls[at].path, self.calls[at].number, function, ordinal)

    def place(self, node: Node) -> Place:
        """Where a later run in the same mode finds this operation."""
        call = self.calls[node.call]
        return Place(call.path, call.number, node.source, node.ordinal)


def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
