"""Leave no trace: put a model back exactly as it was, whatever happened to it meanwhile."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch
from torch import nn

from skipway.trace.attributes import Attributes, named_modules
from skipway.trace.buffers import Buffers

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Preserved", "is_preserved", "preserved"]

_Member = TypeVar("_Member", bound=torch.Tensor)
_LAZY: Final = (nn.UninitializedParameter, nn.UninitializedBuffer)
_running: Final[list[nn.Module]] = []


class Preserved:
    """A snapshot of a model and of the random number generators.

    Buffers are copied; parameters are not (that would double the memory of a large model): a parameter's first copy is
    made by `before_write`, which the recorder calls before an operation writes to it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = named_modules(model)
        modules = [module for _, module in self.modules]
        plain = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        self._attributes = Attributes(plain)
        while further := self._attributes.unregistered():  # they run like the others
            modules += further
            plain += further
            self._attributes = Attributes(plain)
        if len(plain) == len(modules):
            parameters, buffers = self._attributes.members("_parameters"), self._attributes.members("_buffers")
        else:  # scripted modules have no tables of their own
            parameters, buffers = list(model.parameters()), list(model.buffers())
        known = {id(tensor) for tensor in (*parameters, *buffers)}
        loose = [tensor for tensor in self._attributes.loose if id(tensor) not in known]
        self._buffers = Buffers(_initialised([*buffers, *loose]))
        self._parameters = [
            (p, p.data, p.data_ptr(), p.grad, p.requires_grad, p._version) for p in _initialised(parameters)
        ]
        self._storages = {p.untyped_storage()._cdata: p for p, *_ in self._parameters if p.layout is torch.strided}
        self._written: dict[int, tuple[nn.Parameter, torch.Tensor]] = {}
        self._rng = _rng_state()

    def before_write(self, storage: int) -> None:
        """Keep a copy of the parameter that lives in `storage`, if one does and none is kept yet."""
        parameter = self._storages.get(storage)
        if parameter is not None and storage not in self._written:
            self._written[storage] = (parameter, parameter.detach().clone())

    def keep_parameters(self) -> None:
        """Copy every parameter: for models that are known to write to theirs."""
        for storage in self._storages:
            self.before_write(storage)

    @property
    def parameters_written(self) -> bool:
        """Whether a parameter has been written to since the snapshot."""
        return bool(self._written) or any(p._version != version for p, *_, version in self._parameters)

    @property
    def drawn_from(self) -> frozenset[str]:
        """Which of the global random number generators have moved since the snapshot: torch, python, numpy."""
        cpu, cuda, python, numpy = self._rng
        now = _rng_state()
        moved = {
            "torch": not torch.equal(cpu, now[0]) or _differ(cuda, now[1]),
            "python": python != now[2],
            "numpy": numpy[2:] != now[3][2:] or not np.array_equal(numpy[1], now[3][1]),
        }
        return frozenset(name for name, has in moved.items() if has)

    def restore(self) -> None:
        """Put everything back."""
        self._attributes.restore()
        self._buffers.restore()
        with torch.no_grad():
            for parameter, data, address, grad, requires_grad, _ in self._parameters:
                if parameter.data_ptr() != address or parameter.shape != data.shape:
                    parameter.data = data
                if parameter.grad is not grad:
                    parameter.grad = grad
                if parameter.requires_grad != requires_grad:
                    parameter.requires_grad_(requires_grad)
            for parameter, copy in self._written.values():
                parameter.copy_(copy)
        self._written.clear()
        _set_rng_state(self._rng)


@contextmanager
def preserved(model: nn.Module, *, parameters: bool = False) -> Iterator[Preserved]:
    """Whatever runs inside leaves parameters, buffers, gradients, modes, hooks, attributes and generators as they were.

    Holds also when the body raises or is interrupted. Without `parameters` their values are copied only where a
    recorder announces a write (see `Preserved.before_write`).
    """
    snapshot = Preserved(model)
    if parameters:
        snapshot.keep_parameters()
    _running.append(model)
    # An autocast region keeps weights that it has cast; older PyTorch gives those cast without gradients to every run.
    torch.clear_autocast_cache()
    try:
        yield snapshot
    finally:
        _running.remove(model)
        snapshot.restore()
        torch.clear_autocast_cache()


def is_preserved(model: nn.Module) -> bool:
    """Whether what `model` does now is undone afterwards: it is being looked at, not trained."""
    return any(m is model for m in _running)


def _initialised(tensors: list[_Member]) -> list[_Member]:
    """Without those of lazy modules that have not run yet; `isinstance` of a parameter is a call into Python."""
    lazy = {kind for kind in set(map(type, tensors)) if issubclass(kind, _LAZY)}
    return [t for t in tensors if type(t) not in lazy] if lazy else tensors


def _rng_state() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state_all() if _cuda_in_use() else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()


def _cuda_in_use() -> bool:
    in_use: bool = torch.cuda.is_initialized()
    return in_use


def _differ(before: list[torch.Tensor] | None, now: list[torch.Tensor] | None) -> bool:
    if before is None or now is None:
        return before is not now
    return any(not torch.equal(a, b) for a, b in zip(before, now, strict=True))


def _set_rng_state(state: tuple[Any, ...]) -> None:
    cpu, cuda, python, numpy = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    np.random.set_state(numpy)  # the global one is restored
