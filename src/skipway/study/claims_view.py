"""Claims as a tree of parts: the verdicts first, then each statement with its criterion and what was measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from skipway.parts import Part, Section, Table, Text, Tone
from skipway.report.numbers import counted, duration_text, short
from skipway.study.claim import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.study.claim import Judgement, Verdict
    from skipway.study.examine import Examined, Findings

__all__ = ["examined_dict", "findings_dict", "findings_parts", "findings_report", "number_rows"]

_SCHEMA: Final = "skipway.claims/1.0"
_TONES: Final[dict[Verdict, Tone]] = {
    "holds": "good",
    "holds only if": "warning",
    "does not hold": "bad",
    "documentary": "plain",
    "not measured": "muted",
}
_SNAKE: Final = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_COUNTED: Final[dict[Verdict, tuple[str, str]]] = {
    "holds": ("holds", "hold"),
    "holds only if": ("holds only if …", "hold only if …"),
    "does not hold": ("does not hold", "do not hold"),
    "documentary": ("documentary", "documentary"),
    "not measured": ("not measured", "not measured"),
}


def findings_parts(findings: Findings) -> tuple[Part, ...]:
    """The parts for a terminal: how many of each verdict, a line for each claim, conditions and words below."""
    ordered = _ordered(findings.examined)
    rows = tuple((e.claim.id, e.judgement.verdict, e.judgement.figure) for e in ordered)
    return (
        Text(text=f"skipway · {_title(findings)}", tone="title"),
        Text(text=_counts(findings)),
        Table(columns=("claim", "verdict", "measured"), rows=rows),
        *(part for e in ordered for part in _words(e)),
    )


def findings_report(findings: Findings) -> tuple[Part, ...]:
    """The parts of the report with figures: a section for each claim, by verdict."""
    rows = tuple((e.claim.id, _verdict(e.judgement), e.judgement.figure) for e in _ordered(findings.examined))
    verdicts = Table(columns=("claim", "verdict", "measured"), rows=rows)
    by_verdict = {v: [e for e in findings.examined if e.judgement.verdict == v] for v in VERDICTS}
    return (
        Text(text=_title(findings), tone="title"),
        Section(title="Verdicts", parts=(Text(text=_counts(findings)), verdicts)),
        *(
            Section(title=_COUNTED[verdict][0].capitalize(), parts=tuple(_section(e) for e in found))
            for verdict, found in by_verdict.items()
            if found
        ),
    )


def findings_dict(findings: Findings) -> dict[str, Any]:
    """The verdicts as JSON-ready values."""
    return {
        "schema": _SCHEMA,
        "budget": findings.budget,
        "seconds": round(findings.seconds, 3),
        "counts": {verdict: n for verdict, n in _counter(findings).items() if n},
        "claims": [examined_dict(e) for e in findings.examined],
    }


def examined_dict(examined: Examined) -> dict[str, Any]:
    """A claim and its verdict as JSON-ready values."""
    claim, judgement = examined.claim, examined.judgement
    return {
        "id": claim.id,
        "source": claim.source,
        "statement": claim.statement,
        "measurement": claim.measurement,
        "criterion": claim.criterion,
        "least_budget": claim.least,
        "verdict": judgement.verdict,
        "condition": judgement.condition,
        "figure": judgement.figure,
        "words": judgement.words,
        "numbers": dict(judgement.numbers),
        "seconds": round(examined.seconds, 3),
        "trouble": examined.trouble,
    }


def number_rows(numbers: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Names and values of what was measured; lists of more than a dozen values are told by their ends."""
    rows: list[tuple[str, str]] = []
    for name, value in numbers.items():
        # The name of a net stays as it is.
        words = name.replace("_", " ") if _SNAKE.fullmatch(name) else name
        if isinstance(value, Mapping):
            rows += [(f"{words} · {inner}", text) for inner, text in number_rows(value)]
        else:
            rows.append((words, _value(value)))
    return tuple(rows)


def _title(findings: Findings) -> str:
    return f"{counted(len(findings.examined), 'claim')} at budget {findings.budget}"


def _counter(findings: Findings) -> dict[Verdict, int]:
    found = Counter(e.judgement.verdict for e in findings.examined)
    return {verdict: found[verdict] for verdict in VERDICTS}


def _counts(findings: Findings) -> str:
    said = [f"{n} {_COUNTED[verdict][n != 1]}" for verdict, n in _counter(findings).items() if n]
    return " · ".join([*said, duration_text(findings.seconds)])


def _ordered(examined: Sequence[Examined]) -> list[Examined]:
    """As they came, those that were not measured last."""
    return sorted(examined, key=lambda e: e.judgement.verdict == "not measured")


def _verdict(judgement: Judgement) -> str:
    return f"holds only if {judgement.condition}" if judgement.condition else judgement.verdict


def _words(examined: Examined) -> list[Text]:
    claim, judgement = examined.claim, examined.judgement
    said = [f"only if {judgement.condition}." if judgement.condition else "", judgement.words]
    texts = [Text(text=f"{claim.id}: {' '.join(filter(None, said))}")] if any(said) else []
    if examined.trouble:
        texts.append(Text(text=f"{claim.id}: {examined.trouble}", tone="warning"))
    return texts


def _section(examined: Examined) -> Section:
    claim, judgement = examined.claim, examined.judgement
    numbers = number_rows(judgement.numbers)
    return Section(
        title=claim.id,
        note=f"{claim.statement} ({claim.source})",
        parts=(
            Text(text=f"{_verdict(judgement)}: {judgement.figure}", tone=_TONES[judgement.verdict]),
            *([Text(text=judgement.words)] if judgement.words else []),
            *([Text(text=examined.trouble, tone="warning")] if examined.trouble else []),
            Text(text=f"measurement: {claim.measurement}\ncriterion: {claim.criterion}", tone="muted"),
            *judgement.parts,
            *([Table(columns=("measured", "value"), rows=numbers)] if numbers else []),
        ),
    )


def _value(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return short(value)
    if isinstance(value, list | tuple):
        shown = [_value(v) for v in value]
        return ", ".join(shown if len(shown) <= 12 else [*shown[:5], "…", *shown[-5:], f"({len(shown)})"])
    return str(value)
