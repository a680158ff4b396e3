"""Parts to the terminal that is there: as wide as it is, but no wider than reads well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console

from skipway.report.terminal import renderable, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipway.parts import Part

__all__ = ["show"]

WIDEST: Final = 120


def show(parts: Iterable[Part]) -> None:
    """Print parts to standard output; a pipe or file gets plain text of 100 columns."""
    console = Console(highlight=False)
    if not console.is_terminal:
        print(to_text(parts))  # noqa: T201  # this is what the function is for
        return
    console.width = min(console.width, WIDEST)
    console.print(renderable(parts))
