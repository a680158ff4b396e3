"""What is known of an ATen operation, and how its arguments are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from skipway.trace import ops
from skipway.trace.graph import SPLIT_ON_ENTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Operation", "attributes", "flat_tensors", "operation"]

# The arguments that classification reads.
_READ: Final = frozenset(
    {
        "alpha", "beta", "dim", "end", "groups", "kernel_size", "max_val", "min_val", "other", "p", "scale", "start",
        "step", "stride", "train", "value",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    """An ATen overload as recording needs it."""

    op: str
    writes: tuple[int, ...]
    writes_keywords: tuple[str, ...]
    names: tuple[str, ...]
    flops: Callable[..., int] | None
    makes_space: bool
    is_view: bool
    normalises: bool
    read: tuple[tuple[int, str], ...]
    plain: bool

    def count(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
        """Floating point operations of one call, a multiply-add counting 2."""
        formula = getattr(self.flops, "__wrapped__", None)
        if formula is None or not isinstance(out, torch.Tensor):
            return int(self.flops(*args, **kwargs, out_val=out)) if self.flops is not None else 0
        shapes = [a.shape if isinstance(a, torch.Tensor) else a for a in args]
        return int(formula(*shapes, out_shape=out.shape, **kwargs))  # the wrapper would walk every argument as a tree

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The arguments that the operation writes to."""
        values = [args[i] for i in self.writes if i < len(args)]
        values += [kwargs[name] for name in self.writes_keywords if name in kwargs]
        return list(_tensors(values))


_known: dict[Any, Operation] = {}


def operation(func: Any) -> Operation:
    """What is known of an ATen overload (kept: the schema never changes)."""
    known = _known.get(func)
    if known is None:
        schema = func._schema
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        op = schema.name.split("::")[1].strip("_")
        known = _known[func] = Operation(
            op=op,
            writes=tuple(i for i, w in enumerate(written) if w),
            writes_keywords=tuple(a.name for a, w in zip(schema.arguments, written, strict=True) if w),
            names=tuple(a.name for a in schema.arguments),
            flops=flop_registry.get(func._overloadpacket),
            makes_space=op in ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"),
            is_view=op in ops.VIEW,
            normalises=op in ops.NORM,
            read=tuple((i, a.name) for i, a in enumerate(schema.arguments) if a.name in _READ),
            plain=op not in SPLIT_ON_ENTRY,
        )
    return known


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
