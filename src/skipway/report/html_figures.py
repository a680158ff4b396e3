"""Curves and matrices as figures: what plotly draws, and the same in words and as a table for who cannot see it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from skipway.report.escape import for_plotly
from skipway.report.numbers import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.parts import Heatmap, Lines, Series

__all__ = ["heatmap_chart", "heatmap_words", "lines_chart", "lines_table", "lines_words", "not_drawn"]

DIGITS: Final = 5
SUMMARY: Final = ("curve", "first", "last", "smallest", "largest")


def lines_chart(part: Lines) -> dict[str, Any]:
    """Curves as the page's script reads them; values that the scale cannot show are gaps."""
    return {
        "kind": "lines",
        "x": for_plotly(part.x),
        "unit": for_plotly(part.unit),
        "log": part.log,
        "log_x": part.log_x,
        "series": [_curve(s, log=part.log, log_x=part.log_x) for s in part.series],
    }


def _curve(series: Series, *, log: bool, log_x: bool) -> dict[str, Any]:
    x = series.x if series.x is not None else tuple(range(len(series.y)))
    curve: dict[str, Any] = {
        "name": for_plotly(series.name),
        "x": [_shown(v, log=log_x) for v in x],
        "y": [_shown(v, log=log) for v in series.y],
    }
    if series.low is not None and series.high is not None:
        curve["low"] = [_shown(v, log=log) for v in series.low]
        curve["high"] = [_shown(v, log=log) for v in series.high]
    if series.labels is not None:
        curve["labels"] = [for_plotly(text) for text in series.labels]
    return curve


def _shown(value: float | None, *, log: bool) -> float | None:
    """A number to five digits; None where the scale has no place for it."""
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return float(f"{value:.{DIGITS}g}")


def not_drawn(part: Lines) -> str:
    """How many measured values the scale has no place for, in words; empty if none."""
    missing = sum(y is not None and _shown(y, log=part.log) is None for s in part.series for y in s.y)
    if not missing:
        return ""
    why = "zero, negative or not finite" if part.log else "not finite"
    return f"{missing} value{'s are' if missing > 1 else ' is'} not drawn: {why}."


def lines_words(part: Lines) -> str:
    """The chart in a sentence."""
    curves = "; ".join(f"{s.name or 'curve'} from {first} to {last}" for s, (first, last, *_) in _summaries(part))
    scale = ", logarithmic scale" if part.log else ""
    return f"Line chart of {part.title or 'values'} by {part.x}{scale}: {curves or 'no curve'}."


def lines_table(part: Lines) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows that say in numbers what the curves show."""
    return SUMMARY, [(s.name, *numbers) for s, numbers in _summaries(part)]


def _summaries(part: Lines) -> list[tuple[Series, tuple[str, str, str, str]]]:
    found = []
    for series in part.series:
        known = [y for y in series.y if y is not None]
        finite = [y for y in known if math.isfinite(y)]
        ends = (known[0], known[-1]) if known else (None, None)
        extremes = (min(finite), max(finite)) if finite else (None, None)
        first, last, low, high = (_with_unit(v, part.unit) for v in (*ends, *extremes))
        found.append((series, (first, last, low, high)))
    return found


def _with_unit(value: float | None, unit: str) -> str:
    return short(value) if value is None or not unit else f"{short(value)} {unit}"


def heatmap_chart(part: Heatmap) -> dict[str, Any]:
    """A matrix as the page's script reads it."""
    return {
        "kind": "heatmap",
        "x": for_plotly(part.columns),
        "rows": [for_plotly(name) for name in part.rows],
        "values": [[_shown(v, log=False) for v in row] for row in part.values],
    }


def heatmap_words(part: Heatmap) -> str:
    """The matrix in a sentence."""
    finite = [v for row in part.values for v in row if v is not None and math.isfinite(v)]
    spread = f"from {short(min(finite))} to {short(max(finite))}" if finite else "nothing measured"
    rows, columns = _listed(part.rows), part.columns or "numbered"
    return f"Heat map of {part.title or 'values'}, rows {rows}, columns {columns}: {spread}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:7])}, … ({len(names)} in all)"
