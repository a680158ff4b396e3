"""What the model is called with and what it gives back: plain tensors, tuples, dicts, output objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from skipway.errors import ModelRunError, SkipwayError
from skipway.trace.attributes import held_by

__all__ = [
    "Batch", "Call", "call_arguments", "copied", "describe", "failed_on", "output_tensors", "tensors_of", "unwrapped",
]  # fmt: skip


_DEPTH: Final = 6  # of objects in objects
_PLAIN: Final = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """Positional and keyword arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Batch: TypeAlias = torch.Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any] | Call


def call_arguments(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: a tensor is one argument, a tuple or list several, a mapping keywords.

    Raises:
        SkipwayError: the batch is none of these.
    """
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, Call):
        return batch.args, dict(batch.kwargs)
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    raise SkipwayError(
        f"batch of type {type(batch).__name__}",
        "what the model is called with: a tensor, a tuple of positional arguments or a dict of keyword arguments",
    )


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, and in objects there that hold some (records, graphs, caches)."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif _is_holder(leaf):
            found += output_tensors(leaf)
    return found


def copied(tree: Any, convert: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> Any:
    """The same nest with every tensor copied, so that a model that writes into its input harms nobody.

    Objects of somebody's own classes are copied, too: a cache that the model extends.
    """
    return _copied(tree, convert, {}, 0)


def _copied(tree: Any, convert: Callable[[torch.Tensor], torch.Tensor], known: dict[int, Any], depth: int) -> Any:
    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return convert(value)
        if not _is_holder(value) or depth > _DEPTH:
            return value
        if id(value) not in known:  # also one that holds no tensor yet: a cache that is still empty
            known[id(value)] = twin = _shallow(value)
            for name, held in held_by(value).items() if twin is not value else ():
                object.__setattr__(twin, name, _copied(held, convert, known, depth + 1))
        return known[id(value)]

    return tree_map(one, tree)


def _shallow(value: Any) -> Any:
    """A copy of an object, or itself where it cannot be copied or is the only one of its kind."""
    if isinstance(value, (Enum, ModuleType)):
        return value
    try:
        return copy.copy(value)
    except Exception:  # noqa: BLE001  # a lock, an open file: anybody's own error
        return value


def _is_holder(value: Any) -> bool:
    """Whether it is somebody's object, whose attributes may be tensors."""
    return not isinstance(value, (*_PLAIN, nn.Module, type)) and bool(held_by(value))


def output_tensors(output: Any) -> list[torch.Tensor]:
    """All tensors of an output, in order, also those held by output objects (dataclasses, HF's ModelOutput, caches)."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    pending = [(output, 0)]
    while pending:
        value, depth = pending.pop()
        if id(value) in seen or depth > _DEPTH:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, Mapping):
            pending += [(v, depth + 1) for v in reversed(list(value.values()))]
        elif isinstance(value, (list, tuple)):
            pending += [(v, depth + 1) for v in reversed(value)]
        elif not isinstance(value, (*_PLAIN, nn.Module, type)):
            pending += [(v, depth + 1) for v in reversed(list(held_by(value).values()))]
    return found


def failed_on(batch: Batch, error: BaseException) -> ModelRunError:
    """The error to raise where a model raised `error` on a batch."""
    return ModelRunError(
        f"the model failed on {describe(batch)}: {type(error).__name__}: {error}",
        "an input that the model runs on: check shape, dtype and device",
    )


def describe(batch: Batch) -> str:
    """A batch in words, e.g. ``float32[2,3,224,224]`` or ``input_ids=int64[2,16]``."""
    args, kwargs = call_arguments(batch)
    named = [("", v) for v in args] + list(kwargs.items())
    return ", ".join((f"{name}=" if name else "") + _one(value) for name, value in named)


def _one(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_one(v) for v in value) + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}={_one(v)}" for k, v in value.items()) + "}"
    if _is_holder(value) and (tensors := output_tensors(value)):
        return f"{type(value).__name__}({', '.join(map(_one, tensors))})"
    text = repr(value)
    return text if len(text) <= 24 else type(value).__name__


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DataParallel, DistributedDataParallel or `torch.compile`: no collectives, eager.

    Raises:
        SkipwayError: `model` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise SkipwayError(f"model of type {type(model).__name__}", "a torch.nn.Module")
    while True:
        inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module) and isinstance(
            model, (nn.DataParallel, nn.parallel.DistributedDataParallel)
        ):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
