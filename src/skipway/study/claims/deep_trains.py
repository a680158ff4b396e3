"""Claim ``deep-trains``: residual nets train at depths where plain nets do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._rows import in_every_seed, loss_words, row_numbers, verdict_by_kind

if TYPE_CHECKING:
    from skipway.study.outcome import RowRuns

__all__ = ["judged"]


def judged(shallow: RowRuns, plain: RowRuns, residual: RowRuns, preact: RowRuns) -> Judgement:
    """By the training losses.

    Args:
        shallow: plain, 20 layers.
        plain: 110 layers.
        residual: 110 layers, post-activation.
        preact: 110 layers, full pre-activation.
    """
    stops = bool(plain.records) and len(plain.failed) == len(plain.records)
    trains = {
        name: bool(row.records) and not row.failed and in_every_seed(row.losses, plain.losses)
        for name, row in (("post-activation", residual), ("pre-activation", preact))
    }
    verdict, condition = verdict_by_kind(trains, provided=stops)
    return Judgement(
        verdict=verdict,
        condition=condition,
        figure=f"training loss: plain {loss_words(shallow)} at 20 layers and {loss_words(plain)} at 110; residual at "
        f"110: post-activation {loss_words(residual)}, pre-activation {loss_words(preact)}",
        words="110 layers stand for the 152 of the document, which are ImageNet's. "
        f"Failed trainings at 110 layers: plain {len(plain.failed)} of {len(plain.records)}, post-activation "
        f"{len(residual.failed)} of {len(residual.records)}, pre-activation {len(preact.failed)} of "
        f"{len(preact.records)}.",
        numbers=row_numbers([shallow, plain, residual, preact]),
    )


@claim(
    "deep-trains",
    source="000 (why addition) and 001 (residual connections)",
    statement="With residual connections nets of 152 layers train, where plain nets stop at about 20.",
    measurement="Training loss at 110 layers, plain and residual, under the recipe that trains a plain net of 20.",
    criterion="Holds if the plain net of 110 layers fails in every seed (final training loss within 0.05 of "
    "ln(classes), or not finite), and both residual nets fail in none and end below it in every seed; holds only if "
    "the unit is of the kind that does so, if one of the two does.",
    least="standard",
    otherwise="digits and minutes do not train nets of 110 layers",
)
def check(bench: Bench) -> Judgement:
    """Rows of three studies."""
    degradation, table1, table2 = (bench.study(name) for name in ("degradation", "table1", "table2"))
    return judged(
        degradation.row("plain, 20 layers"),
        table1.row("constant scaling 0 | 1: plain"),
        table1.row("original: identity"),
        table2.row("full pre-activation", "110 layers"),
    )
