"""Parts to the terminal that is there: as wide as it is, but no wider than reads well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console

from skipway.report.terminal import renderable, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType, RichCast

    from skipway.parts import Part

__all__ = ["show", "show_whole"]

WIDEST: Final = 120


def show(parts: Iterable[Part]) -> None:
    """Print parts to standard output; a pipe or file gets plain text of 100 columns."""
    console = Console(highlight=False)
    if console.is_terminal:
        _print(console, renderable(parts))
    else:
        print(to_text(parts))  # noqa: T201  # this is what the function is for


def show_whole(result: RichCast) -> None:
    """Print a result by its own report (`skipway.report.shown.Shown`), as wide as `show` does."""
    console = Console(highlight=False)
    if console.is_terminal:
        _print(console, result)
    else:
        print(result)  # noqa: T201  # this is what the function is for


def _print(console: Console, what: RenderableType) -> None:
    console.width = min(console.width, WIDEST)
    console.print(what)
