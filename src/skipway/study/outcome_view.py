"""A study as a tree of parts: the question, what was published beside what came out, and what that rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skipway.parts import Part, Section, Text
from skipway.study import outcome_tables as tables
from skipway.study.curves import learning_charts
from skipway.study.summary import effect_dict, spread_dict

if TYPE_CHECKING:
    from skipway.study.outcome import RowRuns, StudyOutcome
    from skipway.study.rank import Ordering

__all__ = ["outcome_dict", "outcome_parts", "outcome_report"]

_SCHEMA: Final = "skipway.study/1.0"


def outcome_parts(outcome: StudyOutcome) -> tuple[Part, ...]:
    """The parts for a terminal: question, rows and order of each group, what is scaled down, how it was done."""
    parts: list[Part] = [
        Text(text=f"skipway · {outcome.study.id}: {outcome.study.question}", tone="title"),
        *_state(outcome),
    ]
    for group in outcome.groups if outcome.runs else ():
        parts.append(tables.row_table(outcome, group))
        parts += _said(tables.ordering_text(outcome, group))
    measured = tables.measured_table(outcome)
    parts += [measured] if measured is not None else []
    parts += _context(outcome)
    return (*parts, Text(text="\n".join(tables.how_lines(outcome)), tone="muted"))


def outcome_report(outcome: StudyOutcome) -> tuple[Part, ...]:
    """The parts of the report with figures."""
    orders = [part for group in outcome.groups for part in _said(tables.ordering_text(outcome, group))]
    sections = [Section(title="The answer", parts=(*_state(outcome), *orders, *_context(outcome)))]
    if outcome.runs:
        chart = tables.published_chart(outcome)
        rows = tuple(tables.row_table(outcome, group) for group in outcome.groups)
        effects = (tables.effect_table(outcome, group) for group in outcome.groups)
        sections += [
            Section(title="Row by row", parts=(*rows, *((chart,) if chart is not None else ()))),
            Section(title="Differences", parts=tuple(table for table in effects if table is not None)),
            Section(title="Learning curves", parts=tuple(_curves(outcome))),
            Section(title="Measured on the trained nets", parts=_measured(outcome)),
        ]
    how = Text(text="\n".join([f"command: {tables.go_on(outcome)}", *tables.how_lines(outcome)]), tone="muted")
    sections.append(Section(title="How it was done", parts=(how,)))
    return (Text(text=tables.question_text(outcome.study), tone="title"), *(s for s in sections if s.parts))


def outcome_dict(outcome: StudyOutcome) -> dict[str, Any]:
    """The study as JSON-ready values."""
    study = outcome.study
    return {
        "schema": _SCHEMA,
        "study": study.id,
        "title": study.title,
        "question": study.question,
        "source": study.source,
        "published": study.published,
        "others": dict(study.others),
        "budget": outcome.budget,
        "scaled": study.scaled.get(outcome.budget, ""),
        "complete": outcome.complete,
        "missing": outcome.missing,
        "unmeasured": outcome.unmeasured,
        "troubles": list(outcome.troubles),
        "seconds": outcome.seconds,
        "orderings": [
            {"group": group, "kendall_tau_b": _ordering_dict(outcome.ordering(group))} for group in outcome.groups
        ],
        "rows": [_row_dict(outcome, runs) for runs in outcome.rows],
        "how": tables.how_lines(outcome),
    }


def _row_dict(outcome: StudyOutcome, runs: RowRuns) -> dict[str, Any]:
    row = runs.row
    first = next(r.row.label for r in outcome.rows if r.row.group == row.group)
    effects = {
        name: None if row.label == first else outcome.effect(row.label, first, of=name, group=row.group)
        for name in ("test_error", "train_loss")
    }
    return {
        "label": row.label,
        "model": row.model,
        "group": row.group,
        "published": row.published,
        "planned": runs.planned,
        "runs": [
            {
                "seed": seed, "status": record.status, "failed": record.failed, "result": record.result,
                "commit": record.commit, "measured": runs.measured.get(seed),
            }
            for seed, record in runs.records.items()
        ],
        "test_error_percent": spread_dict(runs.test_error),
        "train_loss_nats": spread_dict(runs.train_loss),
        "failed_seeds": list(runs.failed),
        "effect_from_first_of_group": {
            name: None if effect is None else effect_dict(effect) for name, effect in effects.items()
        },
    }  # fmt: skip


def _ordering_dict(found: Ordering | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"rows": found.rows, "tau": found.tau, "low": found.low, "high": found.high}


def _state(outcome: StudyOutcome) -> list[Text]:
    """What is missing, and what went wrong."""
    missing = tables.missing_text(outcome)
    return [
        *([Text(text=missing, tone="warning")] if missing else []),
        *(Text(text=trouble, tone="bad") for trouble in outcome.troubles),
    ]


def _said(text: str) -> list[Text]:
    return [Text(text=text)] if text else []


def _context(outcome: StudyOutcome) -> list[Text]:
    """What the published numbers are, and how ours differ by budget."""
    study = outcome.study
    scaled = study.scaled.get(outcome.budget, "")
    failed = any(row.failed for row in outcome.rows)
    published = tables.published_text(study)
    return [
        *([Text(text=f"at budget {outcome.budget}: {scaled}")] if scaled else []),
        Text(text=f"{published}\n{tables.FAILED}" if failed else published, tone="muted"),
    ]


def _curves(outcome: StudyOutcome) -> list[Part]:
    charts: list[Part] = []
    for group in outcome.groups:
        rows = {r.row.label: r.records.values() for r in outcome.rows if r.row.group == group and r.records}
        drawn = learning_charts(
            {label: [dict(record.loss) for record in records] for label, records in rows.items()},
            {label: [dict(record.tests) for record in records] for label, records in rows.items()},
            of=group,
        )
        # Most runs are tested once, at the end: that is in the tables, and no curve.
        charts += [chart for chart in drawn if any(len(series.y) > 1 for series in chart.series)]
    return charts


def _measured(outcome: StudyOutcome) -> tuple[Part, ...]:
    table = tables.measured_table(outcome)
    return (*((table,) if table is not None else ()), *tables.measured_charts(outcome))
