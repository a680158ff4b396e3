"""The registry of data sets; each file of this package registers the one it is named after."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from skipway.registry import Registry

if TYPE_CHECKING:
    import torch

    from skipway.data.dataset import Dataset
    from skipway.spec import DataSpec

__all__ = ["SOURCES", "Opener", "register"]

Opener = Callable[["DataSpec", "torch.device"], "Dataset"]
SOURCES: Final[Registry[Opener]] = Registry("data set", "skipway.data.sources")


def register(name: str) -> Callable[[Opener], Opener]:
    """Register the function that opens the set called `name`."""
    return lambda opener: SOURCES.add(name, opener)
