"""A console for work that goes on when nobody reads what is said about it."""

from __future__ import annotations

from contextlib import suppress

from rich.console import Console

__all__ = ["LastingConsole"]


class LastingConsole(Console):
    """Falls silent when the reader of its pipe has gone (``skipway train … | head``), where rich ends the program."""

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on."""
        with suppress(SystemExit):
            super().on_broken_pipe()
