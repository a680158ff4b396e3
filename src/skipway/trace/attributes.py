"""The attributes of a model's modules, kept and put back."""

from __future__ import annotations

import collections
import itertools
import operator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["Attributes", "named_modules"]

_CONTAINERS: Final = frozenset({dict, list, set, collections.OrderedDict, collections.deque, collections.defaultdict})
_Shown: TypeAlias = tuple[list[int], list[Any], list[Any]]


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All modules in order, each once, under its first name; the public walk nests a generator for each level."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    pending = [("", model)]
    while pending:
        name, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((name, module))
        children = module._modules  # noqa: SLF001  # as above
        if children:
            prefix = f"{name}." if name else ""
            pending += [(prefix + key, child) for key, child in reversed(list(children.items())) if child is not None]
    return found


class Attributes:
    """What modules hold, what those of their attributes hold that are containers, and the state of generators.

    A module has some twenty attributes, nearly all of them empty hook tables, and hardly any changes: all are compared
    in one go and looked at one by one only where something did (a third of the time of looking at each).
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self._tables = [vars(m) for m in modules]
        self._copies = [table.copy() for table in self._tables]
        self._shown = _shown(self._tables)
        values = self._shown[2]
        containers = [v for v in values if type(v) in _CONTAINERS]
        self._filled = list(filter(None, containers))
        self._empty = list(itertools.filterfalse(None, containers))
        self._contents = [container.copy() for container in self._filled]
        self._content_shown = _shown(self._filled)
        self._generators = [(v, v.get_state()) for v in values if type(v) is torch.Generator]

    def members(self, table: str) -> list[Any]:
        """Parameters (`table` is ``"_parameters"``) or buffers, each once."""
        found = itertools.chain.from_iterable([attributes[table].values() for attributes in self._copies])
        return list({id(m): m for m in found if m is not None}.values())

    def restore(self) -> None:
        """Put everything back, in place and in order."""
        if _differ(_shown(self._filled), self._content_shown):
            for container, content in zip(self._filled, self._contents, strict=True):
                _refill(container, content)
        if any(self._empty):
            for container in self._empty:
                container.clear()
        if _differ(_shown(self._tables), self._shown):
            for table, attributes in zip(self._tables, self._copies, strict=True):
                _refill(table, attributes)
        for generator, state in self._generators:
            generator.set_state(state)


def _shown(containers: Sequence[Any]) -> _Shown:
    """Sizes of containers, their members and, of dictionaries, their values, each in one list."""
    members = list(itertools.chain.from_iterable(containers))
    values = list(itertools.chain.from_iterable([c.values() for c in containers if isinstance(c, dict)]))
    return list(map(len, containers)), members, values


def _differ(now: _Shown, before: _Shown) -> bool:
    return now[0] != before[0] or not (
        all(map(operator.is_, now[1], before[1])) and all(map(operator.is_, now[2], before[2]))
    )


def _refill(container: Any, content: Any) -> None:
    """Give a container its old content back, if it has another."""
    if not _differ(_shown([container]), _shown([content])):
        return
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(content)
    else:
        container.extend(content)
