"""What the model is called with and what it gives back: plain tensors, tuples, dicts, output objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from skipway.errors import SkipwayError

__all__ = ["Batch", "Call", "call_arguments", "copied", "describe", "output_tensors", "tensors_of", "unwrapped"]


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
    """The tensors in nested tuples, lists and dicts."""
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def copied(tree: Any, convert: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> Any:
    """The same nest with every tensor copied, so that a model that writes into its input harms nobody."""
    return tree_map(lambda v: convert(v) if isinstance(v, torch.Tensor) else v, tree)


def output_tensors(output: Any) -> list[torch.Tensor]:
    """All tensors of an output, in order, also those held by output objects (dataclasses, HF's ModelOutput, caches)."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    pending = [(output, 0)]
    while pending:
        value, depth = pending.pop()
        if id(value) in seen or depth > 6:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, Mapping):
            pending += [(v, depth + 1) for v in reversed(list(value.values()))]
        elif isinstance(value, (list, tuple)):
            pending += [(v, depth + 1) for v in reversed(value)]
        elif hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
            pending += [(v, depth + 1) for v in reversed(list(vars(value).values()))]
    return found


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
