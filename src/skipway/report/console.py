"""Parts to the terminal that is there: as wide as it is, but no wider than reads well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console

from skipway.report.terminal import WIDTH, renderable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipway.parts import Part

__all__ = ["show"]

WIDEST: Final = 120


def show(parts: Iterable[Part]) -> None:
    """Print parts to standard output; a pipe or file gets plain text of 100 columns."""
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST) if console.is_terminal else WIDTH
    console.print(renderable(parts))
