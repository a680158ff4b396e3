"""A proof as a tree of parts: the verdicts first, then the figures, then the curves."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from skipway.parts import Lines, Part, Section, Series, Skipped, Table, Text, Tone
from skipway.report.numbers import digits_to_show, number_text, short

if TYPE_CHECKING:
    from skipway.study.proving.proof import Arm, Proof, ProofVerdict

__all__ = ["proof_parts"]

_COLUMNS: Final = ("trained", "final loss", "by seed", "gradient first/last", "similarity")
_DIVERGED: Final = " A run that diverged has none, and counts as guessing in the difference."
_TONES: Final[dict[str, Tone]] = {
    "confirmed": "good", "not confirmed": "bad", "not decidable in this budget": "warning",
}  # fmt: skip


def proof_parts(proof: Proof, *, curves: bool = False) -> tuple[Part, ...]:
    """The parts of a report on one proof.

    Args:
        proof: what `skipway.prove` found.
        curves: whether to draw the losses by step.
    """
    how = (
        f"{proof.task} (guessing: {short(proof.chance)}) · {len(proof.arms[0].courses)} seeds · "
        f"{proof.settings['steps']} steps of {proof.settings['batch_size']} · Adam {proof.settings['lr']:g}, no warm-up"
        f" · {proof.seconds:.0f} s"
    )
    parts: list[Part] = [
        Text(text=f"proof of {proof.rule}: {proof.verdict}", tone="title"),
        Text(text=how, tone="muted"),
        *[_verdict(v) for v in proof.verdicts],
        Table(
            columns=_COLUMNS,
            numeric=_COLUMNS[1:],
            rows=tuple(_row(arm) for arm in proof.arms),
            note=f"Final loss: mean of the last tenth of the steps.{_DIVERGED * any(a.broken for a in proof.arms)} "
            "Gradient (first unit over last) and similarity (tokens or channels behind the last unit) are those before "
            "the first step, first seed.",
        ),
    ]
    if curves:
        parts.append(Section(title="The losses", parts=(_curves(proof),)))
    parts += [Skipped(what=note) for note in proof.notes]
    return tuple(parts)


def _verdict(verdict: ProofVerdict) -> Text:
    effect = verdict.effect
    said = "no pair of runs ended with a number"
    if effect is not None:
        low, high = effect.low, effect.high
        digits = 3 if low is None or high is None else digits_to_show(low, high, 3)
        said = f"loss {number_text(effect.mean, digits, signed=True)}"
        if low is not None and high is not None:
            said += f" [{number_text(low, digits, signed=True)}, {number_text(high, digits, signed=True)}]"
    return Text(text=f"{verdict.fix}: {verdict.verdict}, {said}", tone=_TONES[verdict.verdict])


def _row(arm: Arm) -> tuple[str, ...]:
    finals = [None if c.diverged or not math.isfinite(c.final) else c.final for c in arm.courses]
    known = [final for final in finals if final is not None]
    first = arm.courses[0]
    mean = number_text(statistics.fmean(known), 3) if known else "–"
    return (
        arm.name,
        mean + (f" ({arm.broken} diverged)" if arm.broken else ""),
        " ".join("diverged" if final is None else number_text(final, 3) for final in finals),
        "–" if first.gradient_ratio is None else short(first.gradient_ratio),
        "–" if first.similarity is None else f"{first.similarity:.2f}",
    )


def _curves(proof: Proof) -> Lines:
    series = []
    for arm in proof.arms:
        steps = min(len(c.losses) for c in arm.courses)
        columns = [[c.losses[k] for c in arm.courses] for k in range(steps)]
        # A loss that is not finite is the last of its run, and no point of a curve.
        drawn = [column if all(map(math.isfinite, column)) else None for column in columns]
        series.append(
            Series(
                name=arm.name,
                y=tuple(None if column is None else statistics.fmean(column) for column in drawn),
                low=tuple(None if column is None else min(column) for column in drawn),
                high=tuple(None if column is None else max(column) for column in drawn),
            )
        )
    return Lines(
        title="training loss by step, mean of the seeds and their range",
        x="step",
        series=tuple(series),
        note="A fix that mends the fault takes its curve down where that of the model as it is stays at guessing.",
    )
