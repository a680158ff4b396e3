"""What is known of an ATen operation, and how its arguments are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._ops import HigherOrderOperator
from torch.utils.flop_counter import flop_registry

from skipway.trace import ops
from skipway.trace.graph import SPLIT_ON_ENTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Operation", "attributes", "flat_tensors", "operation"]

# The arguments that classification reads.
_READ: Final = frozenset(
    {
        "alpha", "beta", "ceil_mode", "dim", "end", "groups", "kernel_size", "max_val", "min_val", "other", "p",
        "scale", "start", "step", "stride", "train", "transposed", "value",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    """An ATen overload as recording needs it.

    Args:
        tensors: positions at which a tensor may stand; `lists` says whether there are lists of tensors too.
        writes, writes_keywords: the arguments that it writes to, by position and by name.
        read: position and name of the arguments that classification reads.
        run: the overload, or a quicker way to call it.
        reads: before which position the tensors stand that matter: a norm's statistics are no part of the signal.
        tail: the position from which on no argument is a tensor or a list of tensors.
        read_late, counted_late: whether what lies there is all that `attributes` needs, and with the tensors' shapes
            all that the formula of `flops` needs: both can then be worked out when the run is over.
    """

    op: str
    tensors: tuple[int, ...]
    lists: bool
    writes: tuple[int, ...]
    writes_keywords: tuple[str, ...]
    names: tuple[str, ...]
    flops: Callable[..., int] | None
    makes_space: bool
    is_view: bool
    normalises: bool
    read: tuple[tuple[int, str], ...]
    plain: bool
    run: Callable[..., Any]
    reads: int
    tail: int
    read_late: bool
    counted_late: bool

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """What `flat_tensors` finds, in a third of the time: only where the schema has tensors is looked."""
        if self.lists or kwargs:
            return flat_tensors(args, kwargs)
        given = len(args)
        return [args[i] for i in self.tensors if i < given and isinstance(args[i], torch.Tensor)]

    def count(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
        """Floating point operations of one call, a multiply-add counting 2."""
        formula = getattr(self.flops, "__wrapped__", None)
        if formula is None or not isinstance(out, torch.Tensor):
            return int(self.flops(*args, **kwargs, out_val=out)) if self.flops is not None else 0
        shapes = list(args)
        for i in self.tensors:
            if i < len(args) and isinstance(args[i], torch.Tensor):
                shapes[i] = args[i].shape
        return int(formula(*shapes, out_shape=out.shape, **kwargs))  # the wrapper would walk every argument as a tree

    def count_late(self, inputs: Iterable[Any], rest: Any, out: Any) -> int:
        """The same from what tensors are known by (see `skipway.trace.tape`) and the arguments from `tail` on."""
        formula: Any = self.flops
        return int(
            formula.__wrapped__(*[None if seen is None else seen[2] for seen in inputs], *rest, out_shape=out[2])
        )

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The arguments that the operation writes to."""
        if self.writes == (0,) and args and isinstance(args[0], torch.Tensor):
            return [args[0]]
        values = [args[i] for i in self.writes if i < len(args)]
        values += [kwargs[name] for name in self.writes_keywords if name in kwargs]
        return list(_tensors(values))


# Calls of an overload translate each argument by its schema; for those of many arguments the generated binding takes
# half the time (a convolution 2.4 against 5.1 µs, a batch norm 2.4 against 3.3 µs).
_DIRECT: Final[dict[Any, Callable[..., Any]]] = {
    torch.ops.aten.add.Tensor: torch.add,
    torch.ops.aten.add_.Tensor: torch.Tensor.add_,
    torch.ops.aten.cat.default: torch.cat,
    torch.ops.aten.mul.Tensor: torch.mul,
    torch.ops.aten.permute.default: torch.permute,
    torch.ops.aten.relu.default: torch.relu,
    torch.ops.aten.relu_.default: torch.relu_,
    torch.ops.aten.sigmoid.default: torch.sigmoid,
    torch.ops.aten.convolution.default: torch.convolution,
    torch.ops.aten.native_batch_norm.default: torch.native_batch_norm,
    torch.ops.aten.native_layer_norm.default: torch.native_layer_norm,
}
known_operations: Final[dict[Any, Operation]] = {}


def operation(func: Any) -> Operation:
    """What is known of an ATen overload (kept: the schema never changes)."""
    known = known_operations.get(func)
    if known is None and isinstance(func, HigherOrderOperator):
        known = known_operations[func] = _of_functions(func)
    elif known is None:
        schema = func._schema
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        op = schema.name.split("::")[1].strip("_")
        kinds = [str(a.type) for a in schema.arguments]
        tensors = tuple(i for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]"))
        lists = tuple(i for i, kind in enumerate(kinds) if "Tensor" in kind and i not in tensors)
        tail = max((*tensors, *lists), default=-1) + 1
        read = tuple((i, a.name) for i, a in enumerate(schema.arguments) if a.name in _READ)
        flops = flop_registry.get(func._overloadpacket)
        known = known_operations[func] = Operation(
            op=op,
            tensors=tensors,
            lists=bool(lists),
            writes=tuple(i for i, w in enumerate(written) if w),
            writes_keywords=tuple(a.name for a, w in zip(schema.arguments, written, strict=True) if w),
            names=tuple(a.name for a in schema.arguments),
            flops=flops,
            makes_space=op in ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"),
            is_view=op in ops.VIEW,
            normalises=op in ops.NORM,
            read=read,
            plain=op not in SPLIT_ON_ENTRY,
            run=_DIRECT.get(func, func._op),  # noqa: SLF001  # what calling it does, a frame earlier
            reads=(tensors[2] + 1 if op in ops.NORM and len(tensors) > 2 else tail),
            tail=tail,
            read_late=all(i >= tail for i, _ in read) and op != "lerp" and op not in ops.MULTIPLY and op not in ops.ADD,
            counted_late=(
                hasattr(flops, "__wrapped__")
                and not lists
                and tensors == tuple(range(tail))
                and [str(r.type) for r in schema.returns] == ["Tensor"]
            ),
        )
    return known


def _of_functions(func: HigherOrderOperator) -> Operation:
    """An operator that takes functions: whatever it does inside counts as one operation on the tensors it is given."""
    op = func.name().strip("_")
    return Operation(
        op=op, tensors=(), lists=True, writes=(), writes_keywords=(), names=(), flops=None, makes_space=False,
        is_view=False, normalises=False, read=(), plain=True, run=func, reads=0, tail=0, read_late=False,
        counted_late=False,
    )  # fmt: skip


def flat_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call in the order in which a node lists its inputs."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def attributes(known: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of one call that classification reads."""
    attrs = {n: args[i] for i, n in known.read if i < len(args) and not isinstance(args[i], torch.Tensor)}
    if kwargs:
        attrs.update((k, v) for k, v in kwargs.items() if k in _READ and not isinstance(v, torch.Tensor))
    if known.op in ops.MULTIPLY or known.op in ops.ADD:
        second = args[1] if len(args) > 1 else None
        attrs["scalar"] = second if isinstance(second, (int, float)) else None
    elif known.op == "bernoulli" and "p" in known.names:
        attrs.setdefault("p", 0.5)  # the schema's default is not passed on
    elif known.op == "lerp":
        weight = args[2] if len(args) > 2 else kwargs.get("weight")
        attrs["scalar"] = weight if isinstance(weight, (int, float)) else None
    return attrs
