"""Claim ``bn-after-add``: with BN behind the addition the loss falls slowly at the start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._rows import in_every_seed

if TYPE_CHECKING:
    from skipway.study.outcome import RowRuns
    from skipway.study.records.record import Record

__all__ = ["judged"]

_START: Final = 0.25


def judged(original: RowRuns, after: RowRuns) -> Judgement:
    """By the first quarter of the curves.

    Args:
        original: the unit as it was published first.
        after: with BN behind the addition.
    """
    starts = {row.row.label: _start(row) for row in (original, after)}
    slow = in_every_seed(starts[original.row.label], starts[after.row.label])
    return Judgement(
        verdict="holds" if slow else "does not hold",
        figure="mean training loss over the first quarter of the steps, by seed: "
        + "; ".join(f"{label} {', '.join(f'{v:.3f}' for v in values.values())}" for label, values in starts.items()),
        words=_words(original, after),
        numbers={label: {str(seed): value for seed, value in values.items()} for label, values in starts.items()},
    )


def _words(original: RowRuns, after: RowRuns) -> str:
    """Where the losses stand at the first and the last step of the quarter, and what that makes of the mean."""
    falls = {row.row.label: tuple(_mean_loss(row, at) for at in (0, -1)) for row in (original, after)}
    words = "At the first step on record and at the last of the quarter, means over seeds: " + "; ".join(
        f"{label} {first:.2f} and {last:.2f}" for label, (first, last) in falls.items()
    )
    before, behind = falls.values()
    if before[0] > behind[0] and before[0] - before[1] > behind[0] - behind[1]:
        words += (
            ". The loss does fall more slowly with BN after addition; the mean is lower since it begins lower: without "
            "a norm behind the sums the untrained stream, and with it the logits, grow with depth"
        )
    return words + "."


def _mean_loss(row: RowRuns, at: int) -> float:
    found = []
    for record in row.records.values():
        values = _first_quarter(record)
        found.append(values[at] if values else math.nan)
    return math.fsum(found) / len(found) if found else math.nan


def _start(row: RowRuns) -> dict[int, float]:
    found = {}
    for seed, record in sorted(row.records.items()):
        values = _first_quarter(record)
        found[seed] = math.fsum(values) / len(values) if values else math.inf
    return found


def _first_quarter(record: Record) -> list[float]:
    return [loss for step, loss in record.loss if step <= _START * record.spec.recipe.steps]


@claim(
    "bn-after-add",
    source="003 (identity mappings), activations; He et al. 2016, arXiv 1603.05027, section 4.1, figure 6 (left)",
    statement="With BN after the addition the loss falls slowly at the beginning of the training.",
    measurement="Mean training loss over the first quarter of the steps at 110 layers, against the original unit.",
    criterion="Holds if it is higher with BN after addition in every seed.",
    least="standard",
    otherwise="20 layers do not show it: the norms stand on a short way",
)
def check(bench: Bench) -> Judgement:
    """Two rows of ``table2``."""
    table = bench.study("table2")
    return judged(table.row("original", "110 layers"), table.row("BN after addition", "110 layers"))
