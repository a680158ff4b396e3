"""Claim ``bn-after-add``: with BN behind the addition the loss falls slowly at the start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._rows import in_every_seed

if TYPE_CHECKING:
    from skipway.study.outcome import RowRuns

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
        numbers={label: {str(seed): value for seed, value in values.items()} for label, values in starts.items()},
    )


def _start(row: RowRuns) -> dict[int, float]:
    found = {}
    for seed, record in sorted(row.records.items()):
        values = [loss for step, loss in record.loss if step <= _START * record.spec.recipe.steps]
        found[seed] = math.fsum(values) / len(values) if values else math.inf
    return found


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
