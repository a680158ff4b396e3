"""Models that change themselves, their input or the world while they run.

Shapes: N batch, D width (8).
"""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

__all__ = ["RESTLESS", "Bomb", "Restless"]

WIDTH: Final = 8


class Restless(nn.Module):
    """A unit that does something it should not before it adds; subclasses say what in `mischief`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.calls, self.history, self.cache = 0, [], {}

    def mischief(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.mischief(x)
        return self.norm(x + self.outer(torch.relu(self.inner(x))))


class _Counts(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.history.append(x)
        self.cache[x.shape] = x.sum()
        self.added = x
        return x


class _WritesBuffers(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.scratch = torch.ones(3)
        self.register_buffer("fresh", torch.ones(1))
        return x


class _WritesParameters(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.inner.weight.copy_(F.normalize(self.inner.weight, dim=1))
            self.outer.weight.data = self.outer.weight.data * 1.5
        return x


class _Freezes(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        self.inner.weight.requires_grad_(requires_grad=False)
        return x


class _SwitchesMode(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        self.norm.train(not self.norm.training)
        return x


class _GetsHooks(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        self.inner.register_forward_hook(lambda module, args, output: None)
        self.norm.register_full_backward_hook(lambda module, grads, outputs: None)
        self.outer.register_state_dict_pre_hook(lambda module, prefix, keep: None)
        return x


class _SwapsModules(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        self.outer = nn.Linear(WIDTH, WIDTH)
        self.extra = nn.Linear(1, 1)
        return x


class _DeletesThings(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        if "calls" in vars(self):
            del self.calls
        return x


class _DrawsRandomNumbers(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        noise = random.random() + float(np.random.rand())  # noqa: NPY002  # the global one is meant
        return x + noise * torch.randn_like(x)


class _SetsGradients(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        self.inner.weight.grad = torch.ones_like(self.inner.weight)
        return x


class _WritesItsInput(Restless):
    def mischief(self, x: Tensor) -> Tensor:
        return x.mul_(0.5) if not x.requires_grad else x


def _power_iteration() -> nn.Module:
    net = nn.Sequential(Restless(), Restless())
    for unit in net:
        parametrizations.spectral_norm(unit.outer)
    return net


# What each does in forward, and a builder.
RESTLESS: Final[dict[str, Any]] = {
    "counts, keeps, caches, adds attributes": lambda: nn.Sequential(_Counts(), _Counts()),
    "writes and replaces buffers": _WritesBuffers,
    "writes parameters, also through data": _WritesParameters,
    "freezes a parameter": _Freezes,
    "switches a norm between train and eval": _SwitchesMode,
    "registers hooks": _GetsHooks,
    "replaces a module and adds one": _SwapsModules,
    "deletes an attribute": _DeletesThings,
    "draws from all generators": _DrawsRandomNumbers,
    "sets a gradient": _SetsGradients,
    "writes its input": _WritesItsInput,
    "spectral norm iterates in a buffer": _power_iteration,
}


class Bomb(nn.Module):
    """Stands around another module and raises at its n-th call, before or after that module runs.

    The fuse is kept outside the module, so that burning it down is no change of the model.
    """

    def __init__(self, inner: nn.Module, fuse: list[int], error: type[BaseException], *, late: bool) -> None:
        super().__init__()
        self.inner, self.fuse, self.error, self.late = inner, _Outside(fuse), error, late

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.fuse.steps[0] -= 1
        explodes = self.fuse.steps[0] == 0
        if explodes and not self.late:
            raise self.error("planted")
        output = self.inner(*args, **kwargs)
        if explodes:
            raise self.error("planted")
        return output


class _Outside:
    """Holds a list where no walk over containers reaches it."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps
