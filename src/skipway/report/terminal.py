"""Lowering to the terminal: parts to rich renderables, and to plain text of a fixed width."""

from __future__ import annotations

import io
import math
from functools import singledispatch
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text as RichText

from skipway.parts import FindingPart, Heatmap, Lines, Part, Section, Skipped, StreamMap, Table, Text
from skipway.report.numbers import short
from skipway.report.terminal_road import road
from skipway.report.terminal_table import FittingTable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["WIDTH", "renderable", "to_text"]

WIDTH: Final = 100
_TONES: Final = {
    "plain": "", "title": "bold", "good": "green", "warning": "yellow", "bad": "bold red", "muted": "dim",
}  # fmt: skip
_SEVERITIES: Final = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}
_BARS: Final = "▁▂▃▄▅▆▇█"
_SHADES: Final = " ░▒▓█"


def renderable(parts: Iterable[Part]) -> Group:
    """All parts, one under the other, for `rich.print` and rich consoles; an empty line before the findings."""
    lowered: list[RenderableType] = []
    found = False
    for part in parts:
        if isinstance(part, FindingPart) and not found:
            found = True
            lowered.append("")
        lowered.append(lower(part))
        note = getattr(part, "note", "")
        if note and not isinstance(part, Section):  # a section says it under its heading
            lowered.append(RichText(f"look for: {note}", style="dim"))
    return Group(*lowered)


def to_text(parts: Iterable[Part], *, width: int = WIDTH) -> str:
    """All parts as plain text without colours, at most `width` columns wide."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    console.print(renderable(parts), soft_wrap=False)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


@singledispatch
def lower(part: object) -> RenderableType:
    """One part as something that rich can print."""
    raise TypeError(f"no terminal form for {type(part).__name__}")


@lower.register
def _(part: Text) -> RenderableType:
    return RichText(part.text, style=_TONES[part.tone])


@lower.register
def _(part: Table) -> RenderableType:
    return FittingTable(part)


@lower.register
def _(part: Lines) -> RenderableType:
    rows = [RichText(part.title, style="bold")] if part.title else []
    name_width = max((len(s.name) for s in part.series), default=0)
    for series in part.series:
        known = [y for y in series.y if y is not None]
        ends = f"{short(known[0])} → {short(known[-1])} {part.unit}".rstrip() if known else "not measured"
        rows.append(RichText(f"{series.name:<{name_width}}  {_sparkline(series.y, log=part.log)}  {ends}"))
    return Group(*rows)


@lower.register
def _(part: Heatmap) -> RenderableType:
    known = [v for row in part.values for v in row if v is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    name_width = max((len(name) for name in part.rows), default=0)
    rows = [RichText(part.title, style="bold")] if part.title else []
    for name, values in zip(part.rows, part.values, strict=True):
        shades = "".join("·" if v is None else _SHADES[_level(v, low, high, len(_SHADES))] for v in values)
        rows.append(RichText(f"{name:<{name_width}}  {shades}"))
    rows.append(RichText(f"{part.columns} · from {short(low)} (blank) to {short(high)} (full)".lstrip(" ·"), "dim"))
    return Group(*rows)


@lower.register
def _(part: StreamMap) -> RenderableType:
    return road(part)


@lower.register
def _(part: FindingPart) -> RenderableType:
    head = RichText.assemble(
        (part.severity, _SEVERITIES.get(part.severity, "bold")), " ", (part.rule, "bold"),
        f" at {part.path}" if part.path else "",
    )  # fmt: skip
    if part.cause:
        said = RichText.assemble((part.rule, "bold"), f": {part.message} ", ("(explained by the above)", "dim"))
        return Padding(said, (0, 0, 0, 4))
    body: list[RenderableType] = []
    if part.message:
        body.append(RichText(part.message))
    if part.evidence:
        shown = ", ".join(f"{name.replace('_', ' ')} {_value(v)}" for name, v in part.evidence.items() if v != "")
        body.append(RichText.assemble(("evidence: ", "dim"), shown))
    if part.fix:
        body.append(RichText.assemble(("fix: ", "dim"), part.fix))
    if part.source:
        body.append(RichText(f"source: {part.source}", style="dim"))
    return Group(head, *(Padding(line, (0, 0, 0, 4)) for line in body))


@lower.register
def _(part: Section) -> RenderableType:
    note = [RichText(part.note, style="dim")] if part.note else []
    return Group("", RichText(part.title, style="bold"), *note, renderable(part.parts))


@lower.register
def _(part: Skipped) -> RenderableType:
    return RichText(f"note: {part.what}" + (f" ({part.why})" if part.why else ""), style="dim")


def _value(value: float | str) -> str:
    return short(value) if isinstance(value, float) else str(value)


def _sparkline(values: tuple[float | None, ...], *, log: bool) -> str:
    def scaled(value: float | None) -> float | None:
        if value is None or not math.isfinite(value) or (log and value <= 0):
            return None
        return math.log(value) if log else value

    points = [scaled(v) for v in values]
    known = [p for p in points if p is not None]
    if not known:
        return "·" * len(values)
    low, high = min(known), max(known)
    return "".join("·" if p is None else _BARS[_level(p, low, high, len(_BARS))] for p in points)


def _level(value: float, low: float, high: float, levels: int) -> int:
    if high == low:
        return levels // 2
    return min(int((value - low) / (high - low) * levels), levels - 1)
