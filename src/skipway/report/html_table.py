"""Tables in HTML: wide ones scroll inside their own box, so that the page does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.report.escape import escaped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["table"]

LONG: Final = 48  # characters from which a cell is a sentence, whose lines are broken


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Collection[str] = (), *, title: str = ""
) -> str:
    """Rows under headings; the first cell of a row is its heading.

    Args:
        columns: headings.
        rows: cells as text.
        numeric: names of the columns that are aligned right.
        title: caption; empty for none.
    """
    kinds = ["number" if column in numeric else "" for column in columns]
    head = "".join(f'<th scope="col"{_class(kind)}>{escaped(c)}</th>' for c, kind in zip(columns, kinds, strict=True))
    body = "".join(f"<tr>{_cells(row, kinds)}</tr>" for row in rows)
    caption = f"<caption>{escaped(title)}</caption>" if title else ""
    label = escaped(title or "table")
    # Who scrolls by keyboard must be able to get there.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], kinds: Sequence[str]) -> str:
    opened = ['th scope="row"', *["td"] * len(row)][: len(row)]
    return "".join(
        f"<{name}{_class(kind, 'prose' if len(cell) > LONG else '')}>{escaped(cell)}</{name[:2]}>"
        for name, kind, cell in zip(opened, kinds, row, strict=True)
    )


def _class(*names: str) -> str:
    given = " ".join(filter(None, names))
    return f' class="{given}"' if given else ""
