"""A study as tables, a chart and sentences, which terminal, page and documentation share."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Final

from skipway.parts import Lines, Series, Table
from skipway.report.numbers import counted, duration_text, number_text, short
from skipway.study.comparison.tables import effect_text, spread_text
from skipway.study.comparison.view import environment_lines, recipe_line
from skipway.study.effects import spread
from skipway.study.rank import centre

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from skipway.study.outcome import RowRuns, StudyOutcome
    from skipway.study.published import Study
    from skipway.study.rank import Ordering

__all__ = [
    "FAILED", "effect_table", "go_on", "how_lines", "measured_charts", "measured_table", "missing_text",
    "ordering_text", "published_chart", "published_text", "question_text", "row_table",
]  # fmt: skip

FAILED: Final = (
    "A training has failed when its loss is not finite at the end, or within 0.05 of ln(classes), that of guessing."
)
_ORDER: Final = "Whether our rows come in the published order; the values belong to different budgets."
_MEANS: Final = (
    "Test error, as it is ranked: of the seeds that did not fail where these are more than half, else of all."
)
_EFFECTS: Final = (
    "Intervals that leave 0 out: 95-percent intervals of the mean difference, paired by seed (Student's t); below 0 "
    "the row has less than the first."
)
_ONE_SEED: Final = "Nothing yet: one seed has no spread, and a difference may be chance."


def question_text(study: Study) -> str:
    """What the rows are to tell, as a sentence."""
    question = study.question
    return question[:1].upper() + question[1:]


def published_text(study: Study) -> str:
    """What the published numbers are, where they are from, and those of nets that are not trained here."""
    if not study.published:
        return f"source: {study.source}"
    others = " · ".join(f"{label} {value:.2f}" for label, value in study.others.items())
    return f"published: {study.published}; {study.source}" + (
        f"\nalso there, not trained here: {others}" if others else ""
    )


def row_table(outcome: StudyOutcome, group: str) -> Table:
    """Published beside ours, a row for each row of the study.

    Args:
        outcome: of the study.
        group: whose rows.
    """
    rows = _of_group(outcome, group)
    known = any(r.row.published is not None for r in rows)
    backbone = _common_backbone(rows)
    net = f"design of {backbone}" if backbone else "net"
    columns = ("row", net, *(("published %", "ours %") if known else ("test error %",)), "train loss", "failed", "s")
    return Table(
        columns=columns,
        rows=tuple(_row(r, backbone, published=known) for r in rows),
        title=group or ("Published and ours" if known else "Result"),
        numeric=columns[2:],
        note=" ".join([*[_ORDER] * (known and group == outcome.groups[0]), *[_MEANS] * any(r.failed for r in rows)]),
    )


def _common_backbone(rows: Iterable[RowRuns]) -> str:
    """What stands before the design in the name of every net; empty where they differ, or have no designs."""
    found = {r.row.model.partition("@")[0] for r in rows}
    return found.pop() if len(found) == 1 and any("@" in r.row.model for r in rows) else ""


def _row(runs: RowRuns, backbone: str, *, published: bool) -> tuple[str, ...]:
    over, row = len(runs.records), runs.row
    planned = f", {runs.planned} planned" if over < runs.planned else ""
    seconds = spread([r.seconds for r in runs.records.values()])
    return (
        row.label,
        row.model.removeprefix(f"{backbone}@") if backbone else row.model,
        *((_published(runs),) if published else ()),
        spread_text(runs.test_error, 2),
        "–" if runs.train_loss is None else number_text(runs.train_loss.mean, 3),
        f"{len(runs.failed)}/{over}{planned}" if over else "–",
        "–" if seconds is None else short(seconds.mean),
    )


def _published(runs: RowRuns) -> str:
    value = runs.row.published
    if value is None:
        return "–"
    return "fails" if value == "fail" else f"{value:.2f}"


def effect_table(outcome: StudyOutcome, group: str) -> Table | None:
    """Differences of the rows of a group from its first, paired by seed; None where there are none to speak of."""
    rows = _of_group(outcome, group)
    if len(rows) < 2 or not any(r.records for r in rows[1:]) or not rows[0].records:
        return None
    first = rows[0].row.label

    def cells(runs: RowRuns) -> tuple[str, str, str]:
        label = runs.row.label
        error = outcome.effect(label, first, group=group)
        loss = outcome.effect(label, first, of="train_loss", group=group)
        return label, effect_text(error, seeds=runs.planned), effect_text(loss, 3, seeds=runs.planned)

    several = any(len(r.records) > 1 for r in rows)
    return Table(
        columns=("row", "test error, points", "train loss, nats"),
        rows=tuple(cells(r) for r in rows[1:]),
        title=f"Difference from {first}" + (f", {group}" if group else ""),
        note=_EFFECTS if several else _ONE_SEED,
    )


def ordering_text(outcome: StudyOutcome, group: str) -> str:
    """How far our order is the published one, in a sentence; empty where nothing was published."""
    rows = [r for r in _of_group(outcome, group) if r.row.published is not None]
    if not rows:
        return ""
    head = f"{group}: " if group else ""
    found = outcome.ordering(group)
    if found is None:
        return f"{head}no order to compare: fewer than two rows are known, or all of them failed."
    failed = any(r.row.published == "fail" or (r.records and math.isinf(centre(r.ranked))) for r in rows)
    tied = "; failed rows rank last together" if failed else ""
    return f"{head}Kendall's τ-b with the published order {_tau(found)}, {found.rows} rows{tied}"


def _tau(found: Ordering) -> str:
    if found.low is None or found.high is None:
        return f"{found.tau:.2f} (rows with one seed: no interval)"
    return f"{found.tau:.2f} [{found.low:.2f}, {found.high:.2f}]"


def published_chart(outcome: StudyOutcome) -> Lines | None:
    """Our test error against the published one, a curve for each group; None where fewer than two rows have both."""
    series, left = [], []
    for group in outcome.groups:
        rows = [r for r in _of_group(outcome, group) if r.row.published is not None]
        drawn = sorted(
            (r.row.published, r.test_error.mean, r.row.label)
            for r in rows
            if isinstance(r.row.published, int | float) and r.test_error is not None
        )
        left += [r.row.label for r in rows if r.row.published == "fail" or r.test_error is None]
        if len(drawn) > 1:
            x, y, labels = zip(*drawn, strict=True)
            series.append(Series(name=group or "ours", x=x, y=y, labels=labels))
    if not series:
        return None
    note = "A line that rises from left to right: the published order. A fall is a pair that came out the other way."
    if left:
        note += f" Not drawn, since one side has no value: {', '.join(dict.fromkeys(left))}."
    return Lines(
        series=tuple(series), x="published test error, %", unit="% test error, ours", title="Published against ours",
        note=note,
    )  # fmt: skip


def measured_table(outcome: StudyOutcome) -> Table | None:
    """Means over the seeds of what the study measured on the trained nets; None where it measured no numbers."""
    by_row = {_name(outcome, r): _numbers(r.measured.values()) for r in outcome.rows}
    names = tuple(dict.fromkeys(name for numbers in by_row.values() for name in numbers))
    if not names:
        return None
    return Table(
        columns=("row", *map(_words, names)),
        rows=tuple((row, *(_mean(numbers.get(name, [])) for name in names)) for row, numbers in by_row.items()),
        title="Measured on the trained nets" + (f": {outcome.study.measures}" if outcome.study.measures else ""),
        numeric=tuple(map(_words, names)),
    )


def _mean(values: list[float]) -> str:
    found = spread(values)
    if found is None:
        return "–"
    if found.low == found.high:  # a count, the same for every seed
        return number_text(found.low, 0) if found.low.is_integer() and abs(found.low) < 1e4 else short(found.low)
    return short(found.mean) if found.sd is None else f"{short(found.mean)} ± {short(found.sd)}"


def measured_charts(outcome: StudyOutcome) -> tuple[Lines, ...]:
    """Lists that the study measured on the trained nets: a chart for each name and group, a curve for each row."""
    charts = (
        _chart(outcome, name, group)
        for group in outcome.groups
        for name in dict.fromkeys(name for r in _of_group(outcome, group) for name in _lists(r.measured.values()))
    )
    return tuple(chart for chart in charts if chart.series)


def _chart(outcome: StudyOutcome, name: str, group: str) -> Lines:
    from skipway.study.curves import curve_series

    curves = {r.row.label: _lists(r.measured.values()).get(name, []) for r in _of_group(outcome, group)}
    series = tuple(made for label, seeds in curves.items() if (made := curve_series(label, seeds)))
    words = _words(name)
    _, by, axis = words.rpartition("by ")
    title = f"measured {words}" if words.startswith("by ") else words
    what = f"{outcome.study.measures}. " if outcome.study.measures else ""
    return Lines(
        series=series, x=axis if by else "place", title=title.capitalize() + (f", {group}" if group else ""),
        note=f"{what[:1].upper()}{what[1:]}The line is the mean over the seeds, the band reaches from the smallest to "
        "the largest.",
    )  # fmt: skip


def _numbers(measured: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for values in measured:
        for name, value in values.items():
            if _is_number(value):
                found.setdefault(name, []).append(float(value))
    return found


def _lists(measured: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[int, float]]]:
    """By name, a curve for each seed: value by place."""
    found: dict[str, list[dict[int, float]]] = {}
    for values in measured:
        for name, value in values.items():
            if isinstance(value, list) and any(_is_number(v) for v in value):
                curve = {k: float(v) for k, v in enumerate(value) if _is_number(v)}
                found.setdefault(name, []).append(curve)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def missing_text(outcome: StudyOutcome) -> str:
    """What is missing and the command that goes on; empty where nothing is."""
    if outcome.complete:
        return ""
    planned = sum(row.planned for row in outcome.rows)
    lines = []
    if outcome.missing:
        rest = "nothing is known yet" if outcome.missing == planned else "what follows is of those that are"
        lines.append(f"{outcome.missing} of {planned} runs {'is' if outcome.missing == 1 else 'are'} not over; {rest}.")
    if outcome.unmeasured:
        lines.append(f"Trained, but not measured on: {outcome.unmeasured} of {outcome.runs} nets.")
    return "\n".join([*lines, f"To go on: {go_on(outcome)}"])


def go_on(outcome: StudyOutcome) -> str:
    """The command that carries the study out in the same places, as far as it is not on record."""
    study, budget = outcome.study, outcome.budget
    words = ["skipway", "study", study.id, "--budget", budget]
    planned = max((row.planned for row in outcome.rows), default=0)
    if planned != study.seeds(budget):
        words += ["--seeds", str(planned)]
    if len(outcome.rows) < len(study.rows(budget)):
        words += [word for label in dict.fromkeys(r.row.label for r in outcome.rows) for word in ("--row", label)]
    words += [word for name, value in outcome.places.items() for word in (f"--{name}", value)]
    return shlex.join(words)


def how_lines(outcome: StudyOutcome) -> list[str]:
    """Recipes, seeds, wall clock, data, machines and code, in lines of text."""
    study = outcome.study
    rows_by_recipe: dict[str, list[str]] = {}
    for r in outcome.rows:
        line = recipe_line(r.row.settings or study.settings(outcome.budget))
        rows_by_recipe.setdefault(line, []).append(r.row.label)
    recipes = [
        line if len(rows_by_recipe) == 1 else f"{' · '.join(dict.fromkeys(labels))}: {line}"
        for line, labels in rows_by_recipe.items()
    ]
    records = [record for row in outcome.rows for record in row.records.values()]
    seeds = max((row.planned for row in outcome.rows), default=0)
    lines = [*recipes, f"{counted(seeds, 'seed')} each"]
    if records:
        each = short(outcome.seconds / len(records))
        lines.append(f"training took {duration_text(outcome.seconds)} in all, {each} s a run, beside other runs")
        lines += dict.fromkeys(line for record in records for line in environment_lines(record.environment))
        commits = sorted({record.commit for record in records if record.commit})
        if commits:
            lines.append(f"code: commit {', '.join(commits)}")
    return lines


def _of_group(outcome: StudyOutcome, group: str) -> list[RowRuns]:
    return [r for r in outcome.rows if r.row.group == group]


def _name(outcome: StudyOutcome, runs: RowRuns) -> str:
    return f"{runs.row.label}, {runs.row.group}" if len(outcome.groups) > 1 and runs.row.group else runs.row.label


def _words(name: str) -> str:
    return name.replace("_", " ")
