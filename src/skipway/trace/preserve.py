"""Leave no trace: put a model back exactly as it was, whatever happened to it meanwhile."""

from __future__ import annotations

import collections
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Preserved", "preserved"]

_CONTAINERS: Final = (dict, list, set, collections.OrderedDict, collections.deque, collections.defaultdict)


class Preserved:
    """A snapshot of a model and of the random number generators.

    Buffers are copied; parameters are not (that would double the memory of a large model): a parameter's first copy is
    made by `before_write`, which the recorder calls before an operation writes to it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
        self._dicts = [dict(vars(m)) for m in self._modules]
        self._containers: list[tuple[Any, Any]] = [
            (value, value.copy())
            for attributes in self._dicts
            for value in attributes.values()
            if type(value) in _CONTAINERS
        ]
        self._buffers = [(b, b.data, b.detach().clone()) for b in model.buffers() if not _is_lazy(b)]
        self._parameters = [
            (p, p.data, p.grad, p.requires_grad, p._version) for p in model.parameters() if not _is_lazy(p)
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
        return bool(self._written) or any(p._version != version for p, _, _, _, version in self._parameters)

    def restore(self) -> None:
        """Put everything back."""
        for container, copy in self._containers:
            _refill(container, copy)
        for module, attributes in zip(self._modules, self._dicts, strict=True):
            current = vars(module)
            if len(current) != len(attributes) or any(current.get(k, module) is not v for k, v in attributes.items()):
                current.clear()
                current.update(attributes)
        with torch.no_grad():
            for buffer, data, copy in self._buffers:
                if buffer.data_ptr() != data.data_ptr() or buffer.shape != data.shape:
                    buffer.data = data
                if buffer.device.type != "meta" and not _same_bits(buffer, copy):
                    buffer.copy_(copy)
            for parameter, data, grad, requires_grad, _ in self._parameters:
                if parameter.data_ptr() != data.data_ptr() or parameter.shape != data.shape:
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
    try:
        yield snapshot
    finally:
        snapshot.restore()


def _is_lazy(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer))


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, with NaN equal to NaN."""
    return torch.equal(a, b) or (a.is_floating_point() and torch.equal(a.nan_to_num(), b.nan_to_num()))


def _refill(container: Any, copy: Any) -> None:
    """Give a container its old content back, in place and in order."""
    if isinstance(container, dict):
        if len(container) == len(copy) and all(
            a is b and container[a] is copy[b] for a, b in zip(container, copy, strict=True)
        ):
            return
        container.clear()
        container.update(copy)
    elif isinstance(container, list):
        if len(container) != len(copy) or any(a is not b for a, b in zip(container, copy, strict=True)):
            container[:] = copy
    elif isinstance(container, set):
        if container != copy:
            container.clear()
            container.update(copy)
    elif list(container) != list(copy):
        container.clear()
        container.extend(copy)


def _rng_state() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state_all() if _cuda_in_use() else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()  # the global one is kept


def _cuda_in_use() -> bool:
    in_use: bool = torch.cuda.is_initialized()
    return in_use


def _set_rng_state(state: tuple[Any, ...]) -> None:
    cpu, cuda, python, numpy = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    np.random.set_state(numpy)  # the global one is restored
