"""What claims about trainings say of the rows of a study."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from skipway.parts import Text
from skipway.study.comparison.tables import spread_text
from skipway.study.rank import centre

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from skipway.parts import Part
    from skipway.study.claim import Verdict
    from skipway.study.outcome import RowRuns, StudyOutcome

__all__ = ["drawn", "error_words", "in_every_seed", "loss_words", "mean_rank", "row_numbers", "verdict_by_kind"]


def in_every_seed(less: Mapping[int, float], more: Mapping[int, float]) -> bool:
    """Whether one is less than the other in every seed that both have, and they have one."""
    seeds = less.keys() & more.keys()
    return bool(seeds) and all(less[seed] < more[seed] for seed in seeds)


def verdict_by_kind(does: Mapping[str, bool], *, provided: bool = True) -> tuple[Verdict, str]:
    """What is to hold for every kind of unit: the verdict, and for which kinds it holds where not for all.

    Args:
        does: whether it is so, by kind.
        provided: what else has to be so for any of it to hold.
    """
    kinds = [kind for kind, so in does.items() if so]
    if not provided or not kinds:
        return "does not hold", ""
    return ("holds", "") if len(kinds) == len(does) else ("holds only if", f"the unit is {' or '.join(kinds)}")


def mean_rank(row: RowRuns) -> float:
    """Mean test error in percent; infinite where half of the seeds failed."""
    return centre(row.ranked)


def error_words(row: RowRuns) -> str:
    """Test error in words."""
    failed = f", {len(row.failed)} of {len(row.records)} failed" if row.failed else ""
    return f"{spread_text(row.test_error, 1)} %{failed}" if row.test_error is not None else "diverged"


def loss_words(row: RowRuns) -> str:
    """Training loss in words."""
    lost = sum(not math.isfinite(loss) for loss in row.losses.values())
    diverged = f", {lost} of {len(row.losses)} diverged" if lost else ""
    return f"{spread_text(row.train_loss, 3)}{diverged}" if row.train_loss is not None else "diverged"


def row_numbers(rows: Iterable[RowRuns]) -> dict[str, Any]:
    """Error, loss and failures of rows, by label and seed."""
    return {
        row.row.label: {
            "test_error_percent": {str(seed): value for seed, value in row.errors.items()},
            "train_loss_nats": {str(seed): value for seed, value in row.losses.items() if math.isfinite(value)},
            "failed_seeds": list(row.failed),
        }
        for row in rows
    }


def drawn(outcome: StudyOutcome) -> tuple[Part, ...]:
    """The study's own figures, under the claim's heading instead of their own."""
    from skipway.study.outcome_view import outcome_report

    return tuple(part for part in outcome_report(outcome) if not (isinstance(part, Text) and part.tone == "title"))
