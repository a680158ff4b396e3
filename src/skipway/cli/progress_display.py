"""What the displays of a training and of a comparison have in common: a console, bars, and words beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import Progress

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console
    from rich.progress import ProgressColumn
    from typing_extensions import Self

__all__ = ["ProgressDisplay"]


class ProgressDisplay:
    """Bars on a terminal, shown while the display is entered; words go above them, and alone where there is none.

    Args:
        columns: of the bars.
        console: where.
        speed_sec: over how many seconds the speed is estimated from which the time left follows.
    """

    def __init__(self, *columns: ProgressColumn, console: Console, speed_sec: float = 30) -> None:
        self._console = console
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=speed_sec
        )

    def __enter__(self) -> Self:
        if not self._progress.disable:  # elsewhere some versions of rich print an empty line at its end
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._progress.disable:
            self._progress.stop()

    def noted(self, text: str) -> None:
        """Say it."""
        self._say(text)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)
