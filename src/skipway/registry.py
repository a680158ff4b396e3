"""A registry that fills itself from the files of a package and answers unknown names with a suggestion."""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from skipway.errors import UnknownNameError

__all__ = ["Registry"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class Registry(Mapping[str, T], Generic[T]):
    """Named items, each registered by the file that defines it.

    Args:
        kind: what an item is called in messages, e.g. ``"design"``.
        package: dotted package whose sibling modules register the items; imported at first look-up.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._items: dict[str, T] = {}
        self._loaded = False

    def add(self, name: str, item: T) -> T:
        """Register `item` under `name`; a name is given once."""
        if name in self._items:
            raise KeyError(f"{self.kind} {name!r} is registered twice")
        self._items[name] = item
        return item

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self._package}.{module.name}")
        self._loaded = True  # only now: a file that fails to import must fail again, not leave half a registry

    def __getitem__(self, name: str) -> T:
        self._load()
        try:
            return self._items[name]
        except KeyError:
            raise UnknownNameError(self.kind, name, self._items) from None

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._items))

    def __len__(self) -> int:
        self._load()
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._items

    def names(self, pattern: str = "*") -> list[str]:
        """Names that match a shell pattern, sorted."""
        return [n for n in self if fnmatch.fnmatchcase(n, pattern)]
