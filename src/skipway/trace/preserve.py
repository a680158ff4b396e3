"""Leave no trace: put a model back exactly as it was, whatever happened to it meanwhile."""

from __future__ import annotations

import collections
import operator
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Preserved", "preserved"]

_Member = TypeVar("_Member", bound=torch.Tensor)
_CONTAINERS: Final = frozenset({dict, list, set, collections.OrderedDict, collections.deque, collections.defaultdict})


class Preserved:
    """A snapshot of a model and of the random number generators.

    Buffers are copied; parameters are not (that would double the memory of a large model): a parameter's first copy is
    made by `before_write`, which the recorder calls before an operation writes to it.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = _modules_of(model)
        self._modules = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        self._scripted = len(self._modules) < len(modules)
        self._dicts = [dict(vars(m)) for m in self._modules]
        self._filled: list[tuple[Any, Any]] = []
        self._empty: list[Any] = []  # nearly all are hook tables, and empty: those are only looked at, in one go
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        for attributes in self._dicts:
            for value in attributes.values():
                kind = type(value)
                if kind in _CONTAINERS:
                    if value:
                        self._filled.append((value, _content(value)))
                    else:
                        self._empty.append(value)
                elif kind is torch.Generator:
                    self._generators.append((value, value.get_state()))
        with torch.no_grad():
            self._buffers = [(b, b.data, b.data_ptr(), b.clone()) for b in self._members("_buffers", model.buffers)]
        self._parameters = [
            (p, p.data, p.data_ptr(), p.grad, p.requires_grad, p._version)
            for p in self._members("_parameters", model.parameters)
        ]
        self._storages = {p.untyped_storage()._cdata: p for p, *_ in self._parameters if p.layout is torch.strided}
        self._written: dict[int, tuple[nn.Parameter, torch.Tensor]] = {}
        self._rng = _rng_state()

    def _members(self, table: str, walk: Callable[[], Iterable[_Member]]) -> list[_Member]:
        """Parameters or buffers, each once; read from the attributes at hand unless some module is scripted."""
        found: Iterable[_Member]
        if self._scripted:
            found = walk()
        else:
            found = (
                member for attributes in self._dicts for member in attributes[table].values() if member is not None
            )
        return [m for m in {id(m): m for m in found}.values() if not _is_lazy(m)]

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

    def restore(self) -> None:
        """Put everything back."""
        for container, content in self._filled:
            _refill(container, content)
        for container in filter(None, self._empty):
            container.clear()
        for module, attributes in zip(self._modules, self._dicts, strict=True):
            current = vars(module)
            same_keys = current.keys() == attributes.keys()
            if not same_keys or not all(map(operator.is_, current.values(), attributes.values())):
                current.clear()
                current.update(attributes)
        with torch.no_grad():
            for buffer, data, address, copy in self._buffers:
                if buffer.data_ptr() != address or buffer.shape != copy.shape:
                    buffer.data = data
                if buffer.device.type != "meta" and not torch.equal(buffer, copy):
                    buffer.copy_(copy)
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
        for generator, state in self._generators:
            generator.set_state(state)


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


def _modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules, each once; `nn.Module.modules` goes through one generator for each level of nesting."""
    found = {id(model): model}
    pending = [model]
    while pending:
        for module in pending.pop()._modules.values():  # noqa: SLF001  # as above
            if module is not None and id(module) not in found:
                found[id(module)] = module
                pending.append(module)
    return list(found.values())


def _is_lazy(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer))


def _content(container: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What a container holds, in order: its members, and for a dictionary their values."""
    return tuple(container), tuple(container.values()) if isinstance(container, dict) else ()


def _refill(container: Any, content: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
    """Give a container its old content back, in place and in order."""
    members, values = content
    now = container.values() if isinstance(container, dict) else ()
    if (
        len(container) == len(members)
        and all(map(operator.is_, container, members))
        and all(map(operator.is_, now, values))
    ):
        return
    container.clear()
    if isinstance(container, dict):
        container.update(zip(members, values, strict=True))
    elif isinstance(container, set):
        container.update(members)
    else:
        container.extend(members)


def _rng_state() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state_all() if _cuda_in_use() else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()


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
