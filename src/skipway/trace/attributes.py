"""The attributes of a model's modules, kept and put back."""

from __future__ import annotations

import collections
import itertools
import operator
import random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Attributes", "held_by", "named_modules"]

_CONTAINERS: Final = frozenset({dict, list, set, collections.OrderedDict, collections.deque, collections.defaultdict})
_NESTED: Final = 3  # containers in containers that may hold modules
_MOST: Final = 10_000  # containers, objects and what they hold that are looked through
_NEVER: Final = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
_TABLES: Final = ("_parameters", "_buffers", "_modules")
_LIBRARIES: Final = frozenset({"builtins", "collections", "functools", "types", "torch", "numpy", "weakref"})
_Shown: TypeAlias = tuple[list[int], list[Any], list[Any]]


def named_modules(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """All modules in order, each once, under its first name; the public walk nests a generator for each level."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    pending = [(prefix, model)]
    while pending:
        name, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((name, module))
        children = module._modules  # noqa: SLF001  # as above
        if children:
            start = f"{name}." if name else ""
            pending += [(start + key, child) for key, child in reversed(list(children.items())) if child is not None]
    return found


def held_by(value: Any) -> dict[str, Any]:
    """Attributes of an object by name, those in slots too."""
    found: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found | getattr(value, "__dict__", {})


class Attributes:
    """What modules hold: attributes, what is in containers and plain objects among them, the state of generators.

    A module has some twenty attributes, nearly all of them empty hook tables, and hardly any changes: all are kept and
    compared in one go and looked at one by one only where something did (a third of the time of looking at each).

    Attributes:
        loose: tensors that are neither parameters nor buffers (a cache, a codebook).
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules, self._tables = modules, [vars(m) for m in modules]
        self._attributes = _Contents(self._tables)
        values = self._attributes.values
        types = list(map(type, values))
        containers = list(itertools.compress(values, map(_CONTAINERS.__contains__, types)))
        filled = list(filter(None, containers))
        self._empty = list(itertools.filterfalse(None, containers))
        self.loose: list[torch.Tensor] = []
        self._slots: list[tuple[Any, str, Any]] = []
        self._generators: list[tuple[Any, Any]] = []
        # The tables of modules hold modules, parameters, buffers and hooks, all of which are known.
        tables = {id(table[name]) for table in self._tables for name in _TABLES if name in table}
        self._filled = _Contents(filled + self._further(values, types, [c for c in filled if id(c) not in tables]))

    def _further(self, values: list[Any], types: list[type], filled: list[Any]) -> list[Any]:
        """Containers in containers and in plain objects; notes generators and tensors on the way."""
        odd = set(types) - _CONTAINERS - _NEVER
        odd = {kind for kind in odd if not issubclass(kind, (nn.Module, nn.Parameter))}
        pending = list(itertools.compress(values, map(odd.__contains__, types))) if odd else []
        pending += itertools.chain.from_iterable(_members(container) for container in filled)
        found: list[Any] = []
        seen = {id(container) for container in (*filled, *self._empty)}
        for _ in range(_NESTED):
            inner: list[Any] = []
            for value in pending:
                if type(value) in _NEVER or id(value) in seen or len(seen) > _MOST:
                    continue
                seen.add(id(value))
                if type(value) in _CONTAINERS:
                    (found if value else self._empty).append(value)
                    inner += _members(value)
                elif isinstance(value, tuple):
                    inner += value
                elif isinstance(value, torch.Tensor):
                    if not isinstance(value, nn.Parameter):
                        self.loose.append(value)
                elif (state := _drawn(value)) is not None:
                    self._generators.append((value, state))
                elif _is_plain(value):
                    if (own := getattr(value, "__dict__", None)) is not None:
                        found.append(own)
                    held = held_by(value)
                    self._slots += [(value, name, one) for name, one in held.items() if own is None or name not in own]
                    inner += held.values()
            pending = inner
        return found

    def unregistered(self) -> list[nn.Module]:
        """Modules that plain containers hold (a list of blocks), where PyTorch does not look, and those in them."""
        held: list[Any] = []
        containers = [*self._filled.containers, *(v for v in self._attributes.values if type(v) is tuple)]
        for _ in range(_NESTED):
            _, members, values = _shown(containers)
            inner = members + values
            held += inner
            containers = [one for one in inner if type(one) in _CONTAINERS or type(one) is tuple]
        kinds = {kind for kind in set(map(type, held)) if issubclass(kind, nn.Module)}
        known = set(map(id, self._modules))
        loose = [module for module in held if type(module) in kinds and id(module) not in known]
        found = {id(inner): inner for module in loose for _, inner in named_modules(module)}
        return [m for m in found.values() if id(m) not in known and not isinstance(m, torch.jit.ScriptModule)]

    def members(self, table: str) -> list[Any]:
        """Parameters (`table` is ``"_parameters"``) or buffers, each once."""
        found = itertools.chain.from_iterable([attributes[table].values() for attributes in self._tables])
        return list({id(m): m for m in found if m is not None}.values())

    def restore(self) -> None:
        """Put everything back, in place and in order."""
        self._filled.restore()
        if any(self._empty):
            for container in self._empty:
                container.clear()
        self._attributes.restore()
        for holder, name, value in self._slots:
            if getattr(holder, name, None) is not value:
                object.__setattr__(holder, name, value)
        for generator, state in self._generators:
            _set_drawn(generator, state)


def _members(container: Any) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else list(container)


def _is_plain(value: Any) -> bool:
    """Whether it is an object of a class of somebody's own, rather than of Python, NumPy or PyTorch, or code."""
    kind = type(value)
    if isinstance(value, (nn.Module, type)) or kind.__module__.partition(".")[0] in _LIBRARIES:
        return False
    return hasattr(value, "__dict__") or any("__slots__" in one.__dict__ for one in kind.__mro__)


def _drawn(value: Any) -> Any:
    """State of a random generator; None of anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.get_state() if isinstance(value, np.random.RandomState) else None


def _set_drawn(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


class _Contents:
    """What containers hold: their sizes, their members and, of dictionaries, their values, each in one list.

    Three lists for hundreds of containers are made in less time than a copy of each, and are compared as they are.
    """

    def __init__(self, containers: Sequence[Any]) -> None:
        self.containers = containers
        self._sizes, self._members, self.values = _shown(containers)

    def restore(self) -> None:
        """Give the containers that have another content theirs back."""
        if not _differ(_shown(self.containers), (self._sizes, self._members, self.values)):
            return
        members, values = iter(self._members), iter(self.values)
        for container, size in zip(self.containers, self._sizes, strict=True):
            held = list(itertools.islice(members, size))
            if isinstance(container, dict):
                _refill(container, held, list(itertools.islice(values, size)))
            else:
                _refill(container, held, [])


def _shown(containers: Sequence[Any]) -> _Shown:
    """Sizes of containers, their members and, of dictionaries, their values, each in one list."""
    members = list(itertools.chain.from_iterable(containers))
    values = list(itertools.chain.from_iterable([c.values() for c in containers if isinstance(c, dict)]))
    return list(map(len, containers)), members, values


def _differ(now: _Shown, before: _Shown) -> bool:
    return now[0] != before[0] or not (
        all(map(operator.is_, now[1], before[1])) and all(map(operator.is_, now[2], before[2]))
    )


def _refill(container: Any, members: list[Any], values: list[Any]) -> None:
    """Give a container its old content back, if it has another."""
    if not _differ(_shown([container]), ([len(members)], members, values)):
        return
    container.clear()
    if isinstance(container, dict):
        container.update(zip(members, values, strict=True))
    elif isinstance(container, set):
        container.update(members)
    else:
        container.extend(members)
