"""Claim ``regularise``: pre-activation ends with a higher training loss and a lower test error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import error_words, in_every_seed, loss_words, row_numbers

if TYPE_CHECKING:
    from skipway.study.outcome import RowRuns

__all__ = ["judged"]


def judged(original: RowRuns, preact: RowRuns) -> Judgement:
    """By the final figures of the pair.

    Args:
        original: post-activation.
        preact: full pre-activation.
    """
    higher, lower = in_every_seed(original.losses, preact.losses), in_every_seed(preact.errors, original.errors)
    verdict: Verdict = "holds" if higher and lower else "holds only if" if lower else "does not hold"
    return Judgement(
        verdict=verdict,
        condition="the test error alone is meant: the training loss is not higher"
        if verdict == "holds only if"
        else "",
        figure=f"training loss and test error: original {loss_words(original)}, {error_words(original)}; "
        f"pre-activation {loss_words(preact)}, {error_words(preact)}",
        words="A training that is cut short ends before there is anything to regularise: where losses are far from 0, "
        "the unit that trains faster has the lower loss.",
        numbers=row_numbers([original, preact]),
    )


@claim(
    "regularise",
    source="003 (identity mappings), analysis; He et al. 2016, arXiv 1603.05027, section 5, figure 6 (right)",
    statement="Pre-activation ends with a slightly higher training loss and a lower test error: it regularises.",
    measurement="Final training loss and test error at 110 layers.",
    criterion="Holds if pre-activation has the higher training loss and the lower test error in every seed; holds only "
    "if the test error alone is meant, if that is lower in every seed and the loss not higher.",
    least="standard",
    otherwise="20 layers on digits end with a training loss near 0 both ways",
)
def check(bench: Bench) -> Judgement:
    """Two rows of ``table2``."""
    table = bench.study("table2")
    return judged(table.row("original", "110 layers"), table.row("full pre-activation", "110 layers"))
