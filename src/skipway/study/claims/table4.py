"""Claim ``table4``: the residual nets of the paper in the order of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import drawn, error_words, row_numbers

if TYPE_CHECKING:
    from skipway.study.outcome import StudyOutcome

__all__ = ["judged"]


def judged(outcome: StudyOutcome) -> Judgement:
    """By the errors of the study ``table4``."""
    ordering = outcome.ordering()
    verdict: Verdict = "holds" if ordering is not None and ordering.tau == 1 else "does not hold"
    return Judgement(
        verdict=verdict,
        figure="; ".join(f"{row.row.label} {error_words(row)}, published {row.row.published}" for row in outcome.rows),
        words="The other nets of the table are documentary: their figures are quoted, not measured.",
        numbers=row_numbers(outcome.rows),
        parts=drawn(outcome),
    )


@claim(
    "table4",
    source="003 (identity mappings), results; He et al. 2016, arXiv 1603.05027, table 4",
    statement="Deep pre-activation nets are the best of their time on CIFAR-10.",
    measurement="Test errors of the table's residual nets, as many as the budget has.",
    criterion="Holds if our mean errors stand in the published order (τ-b = 1).",
    least="standard",
    otherwise="depth is what it is about, and minutes do not train depth",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("table4"))
