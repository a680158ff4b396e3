"""Claim ``degradation``: deeper plain nets train worse, residual ones do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._rows import drawn, error_words, in_every_seed, loss_words, row_numbers, verdict_by_kind
from skipway.study.comparison.tables import interval_text

if TYPE_CHECKING:
    from skipway.study.outcome import StudyOutcome

__all__ = ["judged"]

_KINDS = ("plain", "residual", "pre-activation")


def judged(outcome: StudyOutcome) -> Judgement:
    """By the training losses of the study ``degradation``."""
    shallow = {kind: outcome.row(f"{kind}, 20 layers") for kind in _KINDS}
    deep = {kind: outcome.row(f"{kind}, 56 layers") for kind in _KINDS}
    excess = {
        kind: {s: deep[kind].losses[s] - v for s, v in shallow[kind].losses.items() if s in deep[kind].losses}
        for kind in _KINDS
    }
    worse = in_every_seed(shallow["plain"].losses, deep["plain"].losses)
    smaller = {kind: in_every_seed(excess[kind], excess["plain"]) for kind in _KINDS[1:]}
    verdict, condition = verdict_by_kind(smaller, provided=worse)
    effects = {kind: outcome.effect(f"{kind}, 56 layers", f"{kind}, 20 layers", of="train_loss") for kind in _KINDS}
    return Judgement(
        verdict=verdict,
        condition=condition,
        figure="training loss at 20 and 56 layers: "
        + "; ".join(f"{kind} {loss_words(shallow[kind])} and {loss_words(deep[kind])}" for kind in _KINDS),
        words="Excess of 56 layers over 20 in training loss, paired by seed: "
        + "; ".join(f"{kind} {interval_text(effect, 3)}" for kind, effect in effects.items() if effect is not None)
        + ". Test errors: "
        + "; ".join(f"{kind} {error_words(shallow[kind])} and {error_words(deep[kind])}" for kind in _KINDS)
        + ". An excess in training loss is not overfitting.",
        numbers=row_numbers([*shallow.values(), *deep.values()]),
        parts=drawn(outcome),
    )


@claim(
    "degradation",
    source="001 (residual connections), the degradation problem; He et al. 2015, arXiv 1512.03385, figure 1",
    statement="A plain net of 56 layers is worse than one of 20, in training error and so not by overfitting; residual "
    "nets are not.",
    measurement="Training loss of plain, residual and pre-activation nets of 20 and 56 layers under one recipe, with "
    "the same initial weights for branches of the same place, paired by seed.",
    criterion="Holds if in every seed plain56 ends with a higher training loss than plain20, and by a larger excess "
    "than the residual and the pre-activation pair; holds only if the unit is of the kind whose excess is smaller, if "
    "that is so for one of the two.",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("degradation"))
