"""Lesions as parts of a report: what can go and what cannot in words, a table with bars, charts."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from skipway.parts import Lines, Part, Series, Skipped, Table, Text
from skipway.report.numbers import blocks, counted, short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.units.lesion.record import Lesion, LesionRun

__all__ = ["lesion_parts", "lesion_report"]

BAR: Final = 24
# A longer table shows those that matter most.
MOST_ROWS: Final = 64
_DELETED: Final = {
    "unit": "deleted: the branch × 0; shortcut and what follows the merge stay",
    "block": "deleted: the module replaced by the identity",
}
EACH: Final = (
    "One peak for each unit that nothing makes up for. In the published residual nets most units leave hardly a trace, "
    "those that down-sample stand out, and every layer of a net without shortcuts is a peak (arXiv 1605.06431)."
)
RANDOM: Final = "A curve that rises little by little: units work side by side. A jump at 1: each needs all others."
INFLUENCE: Final = "0: the unit leaves the direction of the stream alone; such units are the first to go."
ORDERED: Final = "To the right the order of the net as it was trained; to the left another one."


def lesion_parts(lesion: Lesion) -> tuple[Part, ...]:
    """A result by itself, for the terminal."""
    return (*_header(lesion), *_words(lesion), *_tables(lesion, bars=True), *_notes(lesion))


def lesion_report(lesion: Lesion) -> tuple[Part, ...]:
    """A result by itself, with charts."""
    return (*_header(lesion), *_words(lesion), *_charts(lesion), *_tables(lesion, bars=False), *_notes(lesion))


def _header(lesion: Lesion) -> tuple[Part, ...]:
    whole = "" if math.isnan(lesion.baseline) else f", whole model {_value(lesion, lesion.baseline)}"
    what = f"{len(lesion.units)} {lesion.what}s"
    spent = f"work of {short(lesion.forwards)} whole runs · {lesion.seconds:.1f} s"
    return (
        Text(text=f"skipway · {lesion.model} · lesions", tone="title"),
        Text(
            text=f"{lesion.mode} mode · batch {lesion.batch} · {counted(lesion.samples, 'sample')} · {spent}\n"
            f"{lesion.metric}{whole} · {what} · {_DELETED[lesion.what]}",
            tone="muted",
        ),
    )


# ---- words


def _words(lesion: Lesion) -> tuple[Part, ...]:
    return tuple(Text(text=text) for text in (_single(lesion), _shapes(lesion), _by_influence(lesion)) if text)


def _single(lesion: Lesion) -> str:
    found = lesion.each
    if not found:
        return ""
    worst = max(found.values(), key=lambda r: -math.inf if math.isnan(r.change) else abs(r.change))
    if len(found) == 1:
        return f"without {worst.units[0]} the metric changes by {_change(lesion, worst.change)}."
    summary = lesion.summary()
    return (
        f"{len(found)} {lesion.what}s deleted one by one: median change {_change(lesion, summary['median'])}, "
        f"from {_change(lesion, summary['smallest'])} to {_change(lesion, summary['largest'])}; most by "
        f"{worst.units[0]}."
    )


def _shapes(lesion: Lesion) -> str:
    changing, others = lesion.summary(changes_shape=True), lesion.summary(changes_shape=False)
    if not changing["count"] or not others["count"]:
        return ""
    count = int(changing["count"])
    return (
        f"{count} change{'s' * (count == 1)} the shape: median {_change(lesion, changing['median'])}; "
        f"{int(others['count'])} keep{'s' * (others['count'] == 1)} it: median {_change(lesion, others['median'])}."
    )


def _by_influence(lesion: Lesion) -> str:
    known = [(u.influence, u.path) for u in lesion.units if u.influence is not None]
    if len(known) < 2:
        return ""
    (least, low), (most, high) = min(known), max(known)
    return f"block influence from {short(least)} ({low}) to {short(most)} ({high})."


def _value(lesion: Lesion, value: float) -> str:
    return f"{short(value)}{' ' * bool(lesion.unit)}{lesion.unit}"


def _change(lesion: Lesion, change: float) -> str:
    return f"{_signed(change)}{' points' if lesion.unit == '%' else ''}"


def _signed(value: float) -> str:
    return short(value) if not value > 0 else f"+{short(value)}"


def _notes(lesion: Lesion) -> tuple[Part, ...]:
    kept = tuple(Skipped(what=f"{u.path} was not deleted", why=u.kept) for u in lesion.units if u.kept)
    return (*kept, *(Skipped(what=note) for note in lesion.notes))


# ---- tables


def _tables(lesion: Lesion, *, bars: bool) -> tuple[Part, ...]:
    single = _units_table(lesion, bars=bars)
    drawn = _counts_table(lesion.drawn, f"{lesion.what}s deleted", "Random choices", bars=bars)
    order = _counts_table(lesion.reordered, "swaps", "Random swaps", bars=bars)
    return tuple(part for part in (single, drawn, order, _chosen_table(lesion)) if part is not None)


def _units_table(lesion: Lesion, *, bars: bool) -> Table | None:
    each = lesion.each
    if not each and all(u.influence is None for u in lesion.units):
        return None
    shown = [u for u in lesion.units if u.path in each or not each]
    left_out = max(0, len(shown) - MOST_ROWS)
    if left_out:
        weight = {u.path: abs(each[u.path].change) if each else u.influence or 0.0 for u in shown}
        first = sorted(weight, key=lambda p: -weight[p])[:MOST_ROWS]
        shown = [u for u in shown if u.path in first]
    largest = _largest([r.change for r in each.values()] if each else [u.influence or 0.0 for u in shown])
    columns = [lesion.what, *(["value", "change"] * bool(each)), *(["│"] * bars), "influence", "shape"]
    rows = []
    for unit in shown:
        run = each.get(unit.path)
        cells = {
            lesion.what: unit.path, "influence": short(unit.influence), "shape": "changes" * unit.changes_shape,
            "│": _bar((run.change if run else unit.influence or 0.0) / largest),
        }  # fmt: skip
        if run is not None:
            cells |= {"value": short(run.value), "change": _signed(run.change)}
        rows.append(tuple(cells.get(c, "") for c in columns))
    return Table(
        columns=tuple(columns), rows=tuple(rows), numeric=("value", "change", "influence"),
        title=f"Each {lesion.what} by itself" if each else "Block influence",
        note=f"the {MOST_ROWS} that matter most; {left_out} others are in the JSON." if left_out else "",
    )  # fmt: skip


def _counts_table(found: dict[int, list[LesionRun]], what: str, title: str, *, bars: bool) -> Table | None:
    if not found:
        return None
    largest = _largest([r.change for runs in found.values() for r in runs])
    ordered = any(r.kendall is not None for runs in found.values() for r in runs)
    columns = [what, "draws", "median", "from", "to", "change", *(["│"] * bars), *(["Kendall τ"] * ordered)]
    rows = []
    for count, runs in found.items():
        values, changes = [r.value for r in runs], [r.change for r in runs]
        change = statistics.median(changes)
        taus = [r.kendall for r in runs if r.kendall is not None]
        cells = {
            what: str(count), "draws": str(len(runs)), "median": short(statistics.median(values)),
            "from": short(min(values)), "to": short(max(values)), "change": _signed(change),
            "│": _bar(change / largest), "Kendall τ": f"{statistics.fmean(taus):.2f}" if taus else "",
        }  # fmt: skip
        rows.append(tuple(cells[c] for c in columns))
    return Table(
        columns=tuple(columns), rows=tuple(rows), title=title,
        numeric=(what, "draws", "median", "from", "to", "change", "Kendall τ"),
    )  # fmt: skip


def _chosen_table(lesion: Lesion) -> Table | None:
    if not lesion.chosen:
        return None
    rows = tuple(
        (r.kind, ", ".join(r.units), short(r.value), _signed(r.change), "" if r.kendall is None else f"{r.kendall:.2f}")
        for r in lesion.chosen
    )
    return Table(
        columns=("", f"{lesion.what}s", "value", "change", "Kendall τ"), rows=rows,
        numeric=("value", "change", "Kendall τ"), title="Chosen together",
    )  # fmt: skip


def _largest(values: Sequence[float]) -> float:
    return max((abs(v) for v in values if math.isfinite(v)), default=0.0) or 1.0


def _bar(share: float) -> str:
    if not math.isfinite(share):
        return "│?"
    drawn = blocks(share, BAR)
    return ("−" if share < 0 and drawn else "│") + drawn


# ---- charts


def _charts(lesion: Lesion) -> tuple[Part, ...]:
    found = (_each_chart(lesion), _drawn_chart(lesion), _influence_chart(lesion), _order_chart(lesion))
    return tuple(chart for chart in found if chart is not None)


def _each_chart(lesion: Lesion) -> Part | None:
    each = lesion.each
    if len(each) < 2:
        return None
    labels = tuple(u.path for u in lesion.units)
    values = tuple(_finite(each[p].value) if p in each else None for p in labels)
    whole = tuple(_finite(lesion.baseline) for _ in labels)
    return Lines(
        series=(
            Series(name=f"without the {lesion.what}", y=values, labels=labels),
            Series(name="whole model", y=whole),
        ),
        x=lesion.what, unit=lesion.unit, title=f"{_capital(lesion.metric)} without each {lesion.what}", note=EACH,
    )  # fmt: skip


def _drawn_chart(lesion: Lesion) -> Part | None:
    if len(lesion.drawn) < 2:
        return None
    by_count = {k: [r.value for r in runs if math.isfinite(r.value)] for k, runs in lesion.drawn.items()}
    rows = [(float(k), v) for k, v in by_count.items() if v]
    return Lines(
        series=(
            Series(name="whole model", y=(_finite(lesion.baseline),) * len(rows), x=tuple(k for k, _ in rows)),
            Series(
                name="median, smallest to largest", x=tuple(k for k, _ in rows),
                y=tuple(statistics.median(v) for _, v in rows), low=tuple(min(v) for _, v in rows),
                high=tuple(max(v) for _, v in rows),
            ),
        ),
        x=f"{lesion.what}s deleted", unit=lesion.unit,
        title=f"{_capital(lesion.metric)} without random {lesion.what}s", note=RANDOM,
    )  # fmt: skip


def _influence_chart(lesion: Lesion) -> Part | None:
    if sum(u.influence is not None for u in lesion.units) < 2:
        return None
    series = Series(
        name="influence", y=tuple(u.influence for u in lesion.units), labels=tuple(u.path for u in lesion.units)
    )
    return Lines(series=(series,), x=lesion.what, title="Block influence", note=INFLUENCE)


def _order_chart(lesion: Lesion) -> Part | None:
    pairs = sorted(
        (r.kendall, r.value)
        for r in lesion.runs
        if r.kendall is not None and r.draw is not None and math.isfinite(r.value)
    )
    if len(pairs) < 2:
        return None
    series = Series(name=lesion.metric, x=tuple(k for k, _ in pairs), y=tuple(v for _, v in pairs))
    return Lines(
        series=(series,), x="Kendall τ", unit=lesion.unit, title=f"{_capital(lesion.metric)} by order", note=ORDERED
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
