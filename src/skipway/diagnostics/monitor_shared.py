"""A change to the process that several monitors may want at once: made by the first, undone by the last."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Shared"]


class Shared:
    """Holds a context open as long as anybody wants it: monitors come and go in any order.

    Args:
        make: makes the context anew.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make, self._holders = make, 0
        self._context = ExitStack()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it the change is made."""
        if not self._holders:
            self._context.enter_context(self._make())
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                self._context.close()
