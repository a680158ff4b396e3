"""Claim ``pre-post-norm``: where the norm stands decides whether a deep transformer trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import drawn, loss_words, row_numbers

if TYPE_CHECKING:
    from skipway.study.outcome import RowRuns, StudyOutcome

__all__ = ["judged"]


def judged(outcome: StudyOutcome) -> Judgement:
    """By the training losses of the study ``pre-post-norm``."""
    rows = {row.row.label: row for row in outcome.rows}
    post, post_warm = rows["post-norm, no warm-up"], rows["post-norm, warm-up"]
    pre, pre_warm = rows["pre-norm, no warm-up"], rows["pre-norm, warm-up"]
    shallow = rows["post-norm, no warm-up, 6 layers"]
    stable = not pre.failed
    stuck = _all_failed(post)
    mended = not post_warm.failed
    better = outcome.effect("post-norm, warm-up", "pre-norm, no warm-up", of="train_loss")
    wins = mended and better is not None and better.mean < 0
    decisive = not shallow.failed
    parts = {
        "pre-norm trains without warm-up at 60 layers": stable,
        "post-norm does not": stuck,
        "warm-up mends post-norm": mended,
        "and it then ends lower than pre-norm": wins,
        "at 6 layers post-norm trains too": decisive,
    }
    verdict: Verdict = "does not hold"
    if all(parts.values()):
        verdict = "holds"
    elif stable and stuck:
        verdict = "holds only if"
    missing = "; ".join(part for part, true in parts.items() if not true)
    zero = rows["pre-norm, zero-initialised ends"]
    return Judgement(
        verdict=verdict,
        condition=f"these parts are left out: {missing}" if verdict == "holds only if" else "",
        figure=f"training loss at 60 layers: post-norm {loss_words(post)}, with warm-up {loss_words(post_warm)}; "
        f"pre-norm {loss_words(pre)}, with warm-up {loss_words(pre_warm)} (guessing: 2.079)",
        words=f"Pre-norm with zero-initialised ends: {loss_words(zero)}. At 6 layers: post-norm {loss_words(shallow)}, "
        f"pre-norm {loss_words(rows['pre-norm, no warm-up, 6 layers'])}.",
        numbers={**row_numbers(outcome.rows), "parts": parts},
        parts=drawn(outcome),
    )


def _all_failed(row: RowRuns) -> bool:
    return bool(row.records) and len(row.failed) == len(row.records)


@claim(
    "pre-post-norm",
    source="001 (residual connections), pre-norm and post-norm; Xiong et al. 2020, arXiv 2002.04745",
    statement="Post-norm gives the better final result but needs warm-up; pre-norm is stable without it; at 50 layers "
    "and more the choice decides.",
    measurement="Transformers of 60 and 6 layers on reversing eight tokens, both placements, Adam at 1e-3, with a "
    "warm-up of a fifth of the steps and without.",
    criterion="Holds if at 60 layers pre-norm without warm-up fails in no seed (training loss within 0.05 of ln 8), "
    "post-norm without it fails in all, post-norm with it in none and ends lower than pre-norm, and at 6 layers "
    "post-norm fails in none; holds only if parts are left out, if the first two are so and others not.",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("pre-post-norm"))
