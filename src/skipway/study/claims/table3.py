"""Claim ``table3``: pre-activation is ahead, the more the deeper."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import drawn, error_words, mean_rank, row_numbers

if TYPE_CHECKING:
    from skipway.study.outcome import StudyOutcome

__all__ = ["judged"]


def judged(outcome: StudyOutcome) -> Judgement:
    """By the errors of the study ``table3``."""
    gains, words = {}, []
    for group in outcome.groups:
        before, after = outcome.row(f"baseline, {group}"), outcome.row(f"pre-activation, {group}")
        gains[group] = mean_rank(before) - mean_rank(after)
        words.append(f"{group}: {error_words(before)} to {error_words(after)}")
    ahead = all(gain > 0 for gain in gains.values())
    by_depth = [gains[group] for group in ("110 layers", "164 layers", "1001 layers") if group in gains]
    grows = len(by_depth) > 1 and all(a < b for a, b in itertools.pairwise(by_depth))
    verdict: Verdict = "holds" if ahead and grows else "holds only if" if ahead else "does not hold"
    return Judgement(
        verdict=verdict,
        condition="'the more the deeper' is left out" if verdict == "holds only if" else "",
        figure="; ".join(words),
        words="Published: 110 layers 6.61 to 6.37, 164 layers 5.93 to 5.46, 1001 layers 7.61 to 4.92 %.",
        numbers=row_numbers(outcome.rows),
        parts=drawn(outcome),
    )


@claim(
    "table3",
    source="003 (identity mappings), results; He et al. 2016, arXiv 1603.05027, table 3",
    statement="Pre-activation is ahead of the original unit, the more the deeper the net.",
    measurement="Pairs of nets by depth: test error.",
    criterion="Holds if pre-activation has the lower mean error in every pair, and the gain grows from 110 over 164 to "
    "1,001 layers, as far as the budget has them; holds only if the second half is left out, if the first is so.",
    least="standard",
    otherwise="depth is what it is about, and minutes do not train depth",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("table3"))
