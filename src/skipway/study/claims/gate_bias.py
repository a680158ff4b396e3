"""Claim ``gate-bias``: the initial bias of an exclusive gate decides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import drawn, error_words, mean_rank, row_numbers

if TYPE_CHECKING:
    from skipway.study.outcome import StudyOutcome

__all__ = ["judged"]


def judged(outcome: StudyOutcome) -> Judgement:
    """By the errors of the study ``gate-bias``."""
    rows = {int(row.row.label.removeprefix("b = ")): row for row in outcome.rows}
    ranks = {bias: mean_rank(row) for bias, row in rows.items()}
    best = min(ranks, key=lambda bias: ranks[bias])
    fails = all(math.isinf(ranks[bias]) for bias in ranks if bias >= -5)
    near = math.isfinite(ranks[best]) and best in (-6, -7)
    decides = math.isinf(ranks[0]) and math.isfinite(ranks[best])
    trains = ", ".join(str(bias) for bias in ranks if math.isfinite(ranks[bias]))
    verdict: Verdict = "holds" if fails and near else "holds only if" if decides else "does not hold"
    return Judgement(
        verdict=verdict,
        condition=f"that it decides is meant, not where: biases that train here are {trains}"
        if verdict == "holds only if"
        else "",
        figure="; ".join(f"b = {bias}: {error_words(row)}" for bias, row in rows.items()),
        words="Published: fails from 0 down to -5, 8.70 % at -6, 9.81 % at -7. At the budget standard each bias "
        "has one seed; table 1 has three of 0, -6 and -7.",
        numbers=row_numbers(outcome.rows),
        parts=drawn(outcome),
    )


@claim(
    "gate-bias",
    source="003 (identity mappings), gates; He et al. 2016, arXiv 1603.05027, section 3.1",
    statement="The initial bias of the gate decides: training fails from 0 down to -5 and is best near -6.",
    measurement="Test error of ResNet-110 with exclusive gates over biases from 0 to -10.",
    criterion="Holds if more than half of the seeds fail at every bias from 0 to -5 that was run, and the lowest mean "
    "error stands at -6 or -7; holds only if that it decides is meant, if bias 0 fails and some other trains.",
    least="standard",
    otherwise="20 layers on digits train with any bias",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("gate-bias"))
