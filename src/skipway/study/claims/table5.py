"""Claim ``table5``: pre-activation on ImageNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import drawn, error_words, mean_rank, row_numbers

if TYPE_CHECKING:
    from skipway.study.outcome import StudyOutcome

__all__ = ["judged"]


def judged(outcome: StudyOutcome) -> Judgement:
    """By the errors of the study ``table5``."""
    gains = [
        mean_rank(outcome.row(f"ResNet-{depth}")) - mean_rank(outcome.row(f"pre-activation ResNet-{depth}"))
        for depth in (152, 200)
    ]
    verdict: Verdict = "does not hold"
    if min(gains) > 0:
        verdict = "holds" if gains[1] > gains[0] else "holds only if"
    return Judgement(
        verdict=verdict,
        condition="'the more the deeper' is left out" if verdict == "holds only if" else "",
        figure="; ".join(f"{row.row.label} {error_words(row)}, published {row.row.published}" for row in outcome.rows),
        numbers=row_numbers(outcome.rows),
        parts=drawn(outcome),
    )


@claim(
    "table5",
    source="003 (identity mappings), results; He et al. 2016, arXiv 1603.05027, table 5",
    statement="Pre-activation helps on ImageNet too, little at 152 layers and more at 200.",
    measurement="Top-1 error of both units at 152 and 200 layers.",
    criterion="Holds if pre-activation errs less at both depths and gains more at 200; holds only if the second half "
    "is left out, if the first is so.",
    least="paper",
    otherwise="ImageNet at 152 and 200 layers takes GPUs for days; skipway study table5 --budget paper --dry-run says "
    "how many",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("table5"))
