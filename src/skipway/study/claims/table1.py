"""Claim ``table1``: nothing on the shortcut of ResNet-110 does as well as the identity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import drawn, error_words, mean_rank, row_numbers
from skipway.study.outcome_tables import ordering_text

if TYPE_CHECKING:
    from skipway.study.outcome import StudyOutcome

__all__ = ["judged"]


def judged(outcome: StudyOutcome) -> Judgement:
    """By the errors of the study ``table1``."""
    ordering = outcome.ordering()
    rows = [row for row in outcome.rows if row.row.published is not None]
    identity = outcome.row("original: identity")
    better = [row for row in rows if row is not identity and mean_rank(row) < mean_rank(identity)]
    alike = ordering is not None and ordering.tau > 0 and ordering.low is not None and ordering.low > 0
    best = not better and math.isfinite(mean_rank(identity))
    verdict: Verdict = "holds" if alike and best else "holds only if" if alike or best else "does not hold"
    condition = ""
    if verdict == "holds only if":
        condition = "the order as a whole is meant" if alike else "only the identity's first place is meant"
    return Judgement(
        verdict=verdict,
        condition=condition,
        figure=f"{ordering_text(outcome, '')}; identity {error_words(identity)}",
        words="Better than the identity here: "
        + ("; ".join(f"{row.row.label} {error_words(row)}" for row in better) or "none"),
        numbers={**row_numbers(outcome.rows), "tau_b": None if ordering is None else ordering.tau},
        parts=drawn(outcome),
    )


@claim(
    "table1",
    source="003 (identity mappings), shortcuts; He et al. 2016, arXiv 1603.05027, table 1",
    statement="Scaling, gating, 1×1 convolution and dropout on the shortcut all do worse than the identity.",
    measurement="The eleven rows of the table: test error, and Kendall's τ-b between the published order and ours, "
    "rows that failed last together.",
    criterion="Holds if τ-b is above 0 with its whole interval over seeds, and no row has a lower mean error than the "
    "identity; holds only if the order as a whole, or only the first place, is meant, if one of the two is so.",
    least="standard",
    otherwise="20 layers on digits do not tell these shortcuts apart",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("table1"))
