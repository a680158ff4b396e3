"""Lowering to HTML: each part as an element of the page."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from skipway.parts import FindingPart, Heatmap, Lines, Section, Skipped, StreamMap, Table, Text
from skipway.report.escape import escaped, script_json
from skipway.report.html_figures import (
    heatmap_chart,
    heatmap_words,
    lines_chart,
    lines_table,
    lines_words,
    not_drawn,
)
from skipway.report.html_road import road
from skipway.report.html_table import table
from skipway.report.numbers import short

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipway.parts import Part

__all__ = ["Page", "lower_all"]


class Page:
    """What the elements of one page must agree on: ids, and how deep in sections we are.

    Args:
        heading: level of the next section's heading.
    """

    def __init__(self, heading: int = 2) -> None:
        self.heading = heading
        self.charts = 0
        self.maps = 0
        self.sections: list[tuple[str, str]] = []
        self._count = 0

    def name(self, kind: str) -> str:
        """An id that is new on the page."""
        self._count += 1
        return f"{kind}-{self._count}"


def lower_all(parts: Iterable[Part], page: Page) -> str:
    """Parts, one under the other."""
    return "\n".join(lower(part, page) for part in parts)


@singledispatch
def lower(part: object, _page: Page) -> str:
    """One part as HTML."""
    raise TypeError(f"no HTML form for {type(part).__name__}")


@lower.register
def _(part: Text, page: Page) -> str:
    if part.tone == "title":
        return f"<h{page.heading}>{escaped(part.text)}</h{page.heading}>"
    return f'<p class="text {part.tone}">{escaped(part.text)}</p>'


@lower.register
def _(part: Section, page: Page) -> str:
    name, level = page.name("section"), min(page.heading, 6)
    if page.heading == 2:
        page.sections.append((name, part.title))
    note = f'<p class="lead">{escaped(part.note)}</p>' if part.note else ""
    page.heading += 1
    inside = lower_all(part.parts, page)
    page.heading -= 1
    heading = f'<h{level} id="{name}">{escaped(part.title)}</h{level}>'
    return f'<section aria-labelledby="{name}">{heading}{note}{inside}</section>'


@lower.register
def _(part: Table, _page: Page) -> str:
    return (
        f'<div class="block">{table(part.columns, part.rows, part.numeric, title=part.title)}{_note(part.note)}</div>'
    )


@lower.register
def _(part: Lines, page: Page) -> str:
    page.charts += 1
    columns, rows = lines_table(part)
    gaps = not_drawn(part)
    below = f'<p class="gaps">{escaped(gaps)}</p>' if gaps else ""
    numbers = f"<details><summary>In numbers</summary>{table(columns, rows, columns[1:], title=part.title)}</details>"
    return _figure(part.title, lines_words(part), lines_chart(part), below + numbers, part.note)


@lower.register
def _(part: Heatmap, page: Page) -> str:
    page.charts += 1
    columns = [str(k) for k in range(len(part.values[0]) if part.values else 0)]
    rows = [(name, *map(short, values)) for name, values in zip(part.rows, part.values, strict=True)]
    cells = table((part.columns, *columns), rows, columns, title=part.title)
    numbers = f"<details><summary>In numbers</summary>{cells}</details>"
    return _figure(part.title, heatmap_words(part), heatmap_chart(part), numbers, part.note)


def _figure(title: str, words: str, chart: object, below: str, note: str) -> str:
    caption = f"<figcaption>{escaped(title)}</figcaption>" if title else ""
    return (
        f'<figure class="block"><div class="wide">{caption}'
        f'<div class="chart" role="img" aria-label="{escaped(words)}"></div>'
        f'<script type="application/json" class="data">{script_json(chart)}</script>{below}</div>{_note(note)}</figure>'
    )


def _note(note: str) -> str:
    return f'<aside class="note"><b>What to look for</b> {escaped(note)}</aside>' if note else ""


@lower.register
def _(part: StreamMap, page: Page) -> str:
    page.maps += 1
    title = f"<figcaption>{escaped(part.title)}</figcaption>" if part.title else ""
    return f'<figure class="mapped">{title}{_note(part.note)}{road(part, page.name("map"))}</figure>'


@lower.register
def _(part: FindingPart, page: Page) -> str:
    where = f' <span class="where">at <code>{escaped(part.path)}</code></span>' if part.path else ""
    evidence = "".join(
        f"<div><dt>{escaped(name.replace('_', ' '))}</dt><dd>{escaped(_value(value))}</dd></div>"
        for name, value in part.evidence.items()
        if value != ""
    )
    rule = f"<code>{escaped(part.rule)}</code>"
    if part.cause:
        return (
            f'<details class="finding explained"><summary>{rule}{where}: {escaped(part.message)} '
            f'<span class="why">explained by the above</span></summary><dl class="evidence">{evidence}</dl></details>'
        )
    pieces = (
        f'<p class="rule"><b class="severity">{escaped(part.severity)}</b> {rule}{where}</p>',
        f'<p class="message">{escaped(part.message)}</p>' if part.message else "",
        f'<dl class="evidence">{evidence}</dl>' if evidence else "",
        f'<p class="fix"><b>Fix</b> {escaped(part.fix)}</p>' if part.fix else "",
        *(lower(figure, page) for figure in part.figures),
        f'<p class="source">Source: {escaped(part.source)}</p>' if part.source else "",
    )
    grave = part.severity if part.severity in ("error", "warning", "info") else "info"
    return f'<article class="finding {grave}">{"".join(pieces)}</article>'


@lower.register
def _(part: Skipped, _page: Page) -> str:
    why = f' <span class="why">{escaped(part.why)}</span>' if part.why else ""
    return f'<p class="skipped">{escaped(part.what)}{why}</p>'


def _value(value: float | str) -> str:
    return short(value) if isinstance(value, float) else str(value)
