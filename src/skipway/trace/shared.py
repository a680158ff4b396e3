"""A change to the process that several may want at once: made by the first, undone by the last."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Shared"]


class Shared:
    """Holds a context open as long as anybody wants it: monitors come and go in any order.

    Args:
        make: makes the context anew.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make, self._holders = make, 0
        self._context = ExitStack()

    def take(self) -> None:
        """Want the change from now on."""
        if not self._holders:
            self._context.enter_context(self._make())
        self._holders += 1

    def give(self) -> None:
        """Want it no longer; once for each `take`."""
        self._holders -= 1
        if not self._holders:
            self._context.close()
