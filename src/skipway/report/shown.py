"""What every result of skipway can do: print itself, show itself in a notebook, write itself as HTML."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from rich.jupyter import JupyterMixin

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from rich.console import Group

    from skipway.parts import Part

__all__ = ["Shown"]


class Shown(JupyterMixin, ABC):
    """A result that has a report. A dataclass that is one says ``repr=False``: the report is its text."""

    @abstractmethod
    def _parts(self) -> tuple[Part, ...]:
        """The report on a terminal and in a notebook."""

    @abstractmethod
    def _report(self) -> tuple[Part, ...]:
        """The report with figures."""

    @abstractmethod
    def _title(self) -> str:
        """Title of the HTML page."""

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write the report as one self-contained HTML file, and give its path.

        Raises:
            SkipwayError: the file cannot be written.
        """
        from skipway.report.html import write_html

        return write_html(path, self._report(), title=self._title())

    def __rich__(self) -> Group:
        from skipway.report.terminal import renderable

        return renderable(self._parts())

    def __repr__(self) -> str:
        """The report as plain text, at most 100 columns wide."""
        from skipway.report.terminal import to_text

        return to_text(self._parts())

    __str__ = __repr__
