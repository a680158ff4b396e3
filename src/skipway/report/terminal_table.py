"""A table on a terminal: side by side where it fits, row by row where it does not; a number is never torn apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.cells import cell_len
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from skipway.parts import Table

__all__ = ["FittingTable"]

# Narrower than this, and than its longest word, a column of text is a column of syllables.
_LEGIBLE: Final = 16


class FittingTable:
    """What rich prints of a table, when it knows how much room there is.

    Headings of numeric columns are broken where room is short; where even that does not do, each row is a record: its
    first cell as a heading, the others below as ``column: value``.

    Args:
        part: the table.
    """

    def __init__(self, part: Table) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Side by side, with broken headings, or row by row."""
        part = self._part
        if part.title:
            # A line of text above the table: no markup, and not broken to the width of a narrow table.
            yield RichText(part.title, style="table.title")
        whole, broken = list(part.columns), [self._broken(k) for k in range(len(part.columns))]
        for headings in (whole, broken):
            if self._least(headings, console, options) <= options.max_width:
                yield self._side_by_side(headings)
                return
        yield from self._row_by_row()

    def _numeric(self, column: int) -> bool:
        return self._part.columns[column] in self._part.numeric

    def _cells(self, column: int) -> list[str]:
        return [row[column] for row in self._part.rows]

    def _broken(self, column: int) -> str:
        """The heading of a numeric column in lines no wider than its cells, or than its longest word."""
        heading = self._part.columns[column]
        if not self._numeric(column):
            return heading
        width = max(map(cell_len, (*self._cells(column), *heading.split())), default=0)
        lines: list[str] = []
        for word in heading.split():
            if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
        return "\n".join(lines)

    def _least(self, headings: list[str], console: Console, options: ConsoleOptions) -> int:
        """Width with whole numbers, and text columns as narrow as they can be read."""
        table = _empty()
        least = []
        for column, heading in enumerate(headings):
            table.add_column(RichText(heading if self._numeric(column) else ""), no_wrap=True)
            cells = self._cells(column)
            if self._numeric(column):
                width = max(map(cell_len, cells), default=0)
            else:
                words = [word for text in (heading, *cells) for word in text.split()]
                width = min(max(map(cell_len, words), default=0), _LEGIBLE)
            least.append("x" * width)
        table.add_row(*least)
        return Measurement.get(console, options.update(width=10_000), table).maximum

    def _side_by_side(self, headings: list[str]) -> RichTable:
        table = _empty()
        for column, heading in enumerate(headings):
            numeric = self._numeric(column)
            table.add_column(
                RichText(heading), justify="right" if numeric else "left", overflow="fold", no_wrap=numeric
            )
        for row in self._part.rows:
            table.add_row(*(RichText(cell) for cell in row))
        return table

    def _row_by_row(self) -> RenderResult:
        for row in self._part.rows:
            yield RichText("")
            yield RichText(row[0], style="bold")
            for column, cell in list(zip(self._part.columns, row, strict=True))[1:]:
                if cell:
                    yield Padding(RichText.assemble((f"{column}: ", "dim"), cell), (0, 0, 0, 2))
        yield RichText("")


def _empty() -> RichTable:
    return RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
