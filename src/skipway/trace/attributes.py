"""The attributes of a model's modules, kept and put back."""

from __future__ import annotations

import collections
import itertools
import operator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Attributes", "named_modules"]

_CONTAINERS: Final = frozenset({dict, list, set, collections.OrderedDict, collections.deque, collections.defaultdict})
_NESTED: Final = 3  # containers in containers that may hold modules
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


class Attributes:
    """What modules hold, what those of their attributes hold that are containers, and the state of generators.

    A module has some twenty attributes, nearly all of them empty hook tables, and hardly any changes: all are kept and
    compared in one go and looked at one by one only where something did (a third of the time of looking at each).
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules, self._tables = modules, [vars(m) for m in modules]
        self._attributes = _Contents(self._tables)
        values = self._attributes.values
        types = list(map(type, values))
        containers = list(itertools.compress(values, map(_CONTAINERS.__contains__, types)))
        self._filled = _Contents(list(filter(None, containers)))
        self._empty = list(itertools.filterfalse(None, containers))
        generators = [v for v in values if type(v) is torch.Generator] if torch.Generator in types else []
        self._generators = [(g, g.get_state()) for g in generators]

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
        for generator, state in self._generators:
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
