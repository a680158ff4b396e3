"""Losses by name, each a function of the model's output alone."""

# Shapes: N batch, T tokens, C classes, H height, W width.
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from skipway.cli.complete import LOSSES
from skipway.errors import SkipwayError, UnknownNameError
from skipway.models.load import import_object

__all__ = ["loss_by_name"]

_SEED = 0


def loss_by_name(name: str) -> Callable[[Any], Tensor] | None:
    """The loss called `name`; None stands for the fixed random projection that an inspection uses by itself.

    Args:
        name: ``projection``, ``mean`` (of the first floating output), ``cross_entropy`` (against fixed random classes),
            ``mse`` (against fixed normal noise), or ``pkg.mod:function`` / ``file.py:function``.

    Raises:
        UnknownNameError: no such loss.
        SkipwayError: what is named is no function.
    """
    if name == "projection":
        return None
    if name in _BY_NAME:
        return _BY_NAME[name]
    if ":" in name:
        found = import_object(name)
        if not callable(found):
            raise SkipwayError(f"{name} is of type {type(found).__name__}", "a function loss(output) -> scalar tensor")
        loss: Callable[[Any], Tensor] = found
        return loss
    raise UnknownNameError("loss", name, LOSSES, "or pkg.mod:function, file.py:function")


def mean(output: Any) -> Tensor:
    """Mean of the first floating output."""
    return _first(output).float().mean()


def cross_entropy(output: Any) -> Tensor:
    """Cross-entropy against fixed random classes: (N,C), (N,C,H,W) for images, (N,T,C) for tokens."""
    logits = _first(output)
    if logits.dim() == 3:  # (N,T,C): classes come last
        logits = logits.flatten(0, 1)
    if logits.dim() < 2:
        raise SkipwayError(f"an output of shape {list(logits.shape)} for cross_entropy", "(N,C), (N,T,C) or (N,C,H,W)")
    shape = (logits.shape[0], *logits.shape[2:])
    classes = torch.randint(0, logits.shape[1], shape, generator=torch.Generator().manual_seed(_SEED))
    return F.cross_entropy(logits.float(), classes.to(logits.device))


def mse(output: Any) -> Tensor:
    """Mean square difference to fixed normal noise."""
    first = _first(output).float()
    noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(_SEED))
    return F.mse_loss(first, noise.to(first.device))


_BY_NAME: Mapping[str, Callable[[Any], Tensor]] = {"mean": mean, "cross_entropy": cross_entropy, "mse": mse}


def _first(output: Any) -> Tensor:
    """The first floating tensor of an output, logits before all else."""
    for name in ("logits", "out"):
        named = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(named, Tensor):
            return named
    found = _floating(output)
    if found is None:
        raise SkipwayError(f"an output of type {type(output).__name__} without a floating tensor", "logits")
    return found


def _floating(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((found for value in values if (found := _floating(value)) is not None), None)
