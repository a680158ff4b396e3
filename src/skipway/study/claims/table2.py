"""Claim ``table2``: full pre-activation is the best placement, BN after addition the worst."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import drawn, error_words, mean_rank, row_numbers
from skipway.study.outcome_tables import ordering_text

if TYPE_CHECKING:
    from skipway.study.outcome import StudyOutcome

__all__ = ["judged"]

_BEST = "full pre-activation"
_WORST = "BN after addition"


def judged(outcome: StudyOutcome) -> Judgement:
    """By the errors of the study ``table2``."""
    best, worst, ours = [], [], []
    for group in outcome.groups:
        ranks = {row.row.label: mean_rank(row) for row in outcome.rows if row.row.group == group}
        best.append(math.isfinite(ranks[_BEST]) and min(ranks, key=lambda label: ranks[label]) == _BEST)
        worst.append(ranks[_WORST] == max(ranks.values()))
        ours.append(ordering_text(outcome, group))
    verdict: Verdict = "does not hold"
    if all(best) and all(worst):
        verdict = "holds"
    elif all(best) or all(worst):
        verdict = "holds only if"
    condition = "the best place is meant" if all(best) else "the worst place is meant"
    return Judgement(
        verdict=verdict,
        condition=condition if verdict == "holds only if" else "",
        figure="; ".join(f"{row.row.label} {error_words(row)}" for row in outcome.rows),
        words="; ".join(ours),
        numbers=row_numbers(outcome.rows) if len(outcome.groups) == 1 else {},
        parts=drawn(outcome),
    )


@claim(
    "table2",
    source="003 (identity mappings), activations; He et al. 2016, arXiv 1603.05027, table 2",
    statement="Of five placements of norm and activation, full pre-activation does best and BN after addition worst.",
    measurement="The rows of the table by depth: test error.",
    criterion="Holds if at every depth full pre-activation has the lowest mean error and BN after addition the "
    "highest; holds only if the best, or the worst, place is meant, if only that one is so.",
    least="standard",
    otherwise="20 layers on digits do not tell these placements apart",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("table2"))
