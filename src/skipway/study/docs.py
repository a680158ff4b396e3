"""The pages of the documentation that are made from what is on record: `docs/claims.md` and `docs/tables.md`.

They rest on the files under ``results`` alone, train nothing, and come out the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skipway.errors import SkipwayError
from skipway.parts import Part, Section, Table, Text
from skipway.report.files import write_text
from skipway.report.numbers import duration_text
from skipway.study import outcome_tables as tables
from skipway.study.budgets import BUDGETS, Budget
from skipway.study.claim import VERDICTS
from skipway.study.conduct import study_outcome
from skipway.study.markdown import to_markdown
from skipway.study.published import STUDIES
from skipway.study.records.results import Results
from skipway.train.folder import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skipway.study.outcome import StudyOutcome
    from skipway.study.published import Study

__all__ = ["claims_page", "tables_page", "write_docs"]

_MADE: Final = (
    "This page is made from the files under `results/` by `make docs`; a test compares the two. A + behind a commit "
    "says that there were changes beside it."
)
_CLAIMS: Final = (
    "skipway grew from three texts on residual connections: 000 (why addition), 001 (residual connections, pre-norm "
    "and post-norm) and 003 (a summary of He et al. 2016, arXiv 1603.05027). Each of their statements is measured and "
    "judged by a criterion that was committed before the result; the verdict shown is that of the largest budget at "
    "which the statement was decided."
)
_TABLES: Final = (
    "Published tables, and questions of the same kind, trained and set beside what was published. A budget is `quick` "
    "(minutes), `standard` (hours on two processor cores) or `paper` (the published recipe). Every run is a file under "
    "`results/runs`; intervals are 95 %, paired by seed."
)
_KEYS: Final = (
    "id", "source", "statement", "measurement", "criterion", "verdict", "figure", "condition", "words", "seconds",
    "budget", "criterion_commit", "code_commit", "torch", "python", "processor", "cores", "device",
)  # fmt: skip


def write_docs(docs: str | Path, results: str | Path) -> None:
    """Write both pages.

    Args:
        docs: the folder of the documentation.
        results: the folder of what is on record.
    """
    found = Results(results)
    write_text(Path(docs) / "claims.md", claims_page(found))
    write_text(Path(docs) / "tables.md", tables_page(found))


def claims_page(results: Results) -> str:
    """Every claim on record, with what was found at the largest budget that decided it."""
    claims = _claims(results)
    return _page("The claims, measured", f"{_CLAIMS} Measure them yourself: `skipway claims`.", _claims_parts(claims))


def tables_page(results: Results) -> str:
    """Every study on record, at each budget."""
    found = (_study_section(STUDIES[name], results) for name in STUDIES)
    sections = tuple(section for section in found if section is not None)
    return _page("Published tables, trained", f"{_TABLES} Train one yourself: `skipway study ID`.", sections)


def _page(title: str, lead: str, parts: tuple[Part, ...]) -> str:
    parts = parts or (Text(text="Nothing is on record yet."),)
    return f"# {title}\n\n{lead}\n\n{_MADE}\n\n{to_markdown(parts, level=2)}\n"


def _claims(results: Results) -> list[Mapping[str, Any]]:
    """By id, the file of the largest budget that decided it, or else that of the largest."""
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for budget in BUDGETS:
        for path in sorted((results.path / "claims" / budget).glob("*.json")):
            values = read_json(path)
            missing = [key for key in _KEYS if key not in values]
            if missing:
                raise SkipwayError(f"{path}: no {missing[0]}", "the file as it was written", "skipway claims ID again")
            by_id.setdefault(values["id"], []).append(values)
    return [max(found, key=_decided) for _, found in sorted(by_id.items())]


def _decided(values: Mapping[str, Any]) -> tuple[bool, int]:
    return values["verdict"] != "not measured", BUDGETS.index(values["budget"])


def _claims_parts(claims: list[Mapping[str, Any]]) -> tuple[Part, ...]:
    if not claims:
        return ()
    counted = Counter(values["verdict"] for values in claims)
    count = " · ".join(f"{verdict}: {counted[verdict]}" for verdict in VERDICTS if counted[verdict])
    measured_first = sorted(claims, key=lambda v: v["verdict"] == "not measured")
    rows = tuple((v["id"], v["verdict"], v["figure"], v["budget"]) for v in measured_first)
    overview = Table(columns=("claim", "verdict", "measured", "budget"), rows=rows)
    return (Text(text=f"{len(claims)} claims. {count}."), overview, *map(_claim_section, claims))


def _claim_section(v: Mapping[str, Any]) -> Section:
    rows = [
        ("source", v["source"]),
        ("measurement", v["measurement"]),
        ("criterion", f"{v['criterion']}{_commit(v['criterion_commit'])}"),
        ("verdict", f"{v['verdict']} {v['condition']}".rstrip()),
        ("why" if v["verdict"] == "not measured" else "measured", v["figure"]),
        *([("note", v["words"])] if v["words"] else []),
    ]
    if v["verdict"] not in ("documentary", "not measured"):
        where = v["processor"] if v["device"] == "cpu" else f"{v['device']}, {v['processor']}"
        took = f"budget {v['budget']}, {duration_text(v['seconds'])}{_commit(v['code_commit'])}"
        rows.append(("run", f"{took}; {where}, {v['cores']} cores; torch {v['torch']}, python {v['python']}"))
    return Section(title=v["id"], parts=(Text(text=v["statement"]), Table(columns=("", ""), rows=tuple(rows))))


def _commit(commit: str) -> str:
    return f" (commit {commit})" if commit else ""


def _study_section(study: Study, results: Results) -> Section | None:
    outcomes = [_on_record(study, budget, results) for budget in BUDGETS]
    parts = tuple(_budget_section(outcome) for outcome in outcomes if outcome is not None)
    if not parts:
        return None
    lines = (f"{line[:1].upper()}{line[1:]}." for line in tables.published_text(study).splitlines())
    head = Text(text="\n".join([tables.question_text(study), *lines]))
    return Section(title=f"{study.id}: {study.title}", parts=(head, *parts))


def _on_record(study: Study, budget: Budget, results: Results) -> StudyOutcome | None:
    """A study with all the seeds that are on record; None where there is not one run."""
    found = study_outcome(study, budget, results=results)
    while (more := study_outcome(study, budget, results=results, seeds=_seeds(found) + 1)).runs > found.runs:
        found = more
    return found if found.runs else None


def _seeds(outcome: StudyOutcome) -> int:
    return max((row.planned for row in outcome.rows), default=0)


def _budget_section(outcome: StudyOutcome) -> Section:
    scaled = outcome.study.scaled.get(outcome.budget, "")
    missing = tables.missing_text(outcome)
    parts: list[Part] = [Text(text=text) for text in (f"Scaled down: {scaled}" if scaled else "", missing) if text]
    for group in outcome.groups:
        effects = tables.effect_table(outcome, group)
        order = tables.ordering_text(outcome, group)
        parts += [tables.row_table(outcome, group), *([Text(text=order)] if order else [])]
        parts += [effects] if effects is not None else []
    measured = tables.measured_table(outcome)
    parts += [measured] if measured is not None else []
    failed = [tables.FAILED] if any(row.failed for row in outcome.rows) else []
    return Section(
        title=f"Budget {outcome.budget}", parts=(*parts, Text(text="\n".join([*failed, *tables.how_lines(outcome)])))
    )
