"""A proof as a tree of parts: the verdicts first, then the figures, then the curves."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from skipway.parts import Lines, Part, Section, Series, Skipped, Table, Text, Tone
from skipway.report.numbers import short

if TYPE_CHECKING:
    from skipway.study.proving.proof import Arm, Proof, ProofVerdict

__all__ = ["proof_parts"]

_COLUMNS: Final = ("trained", "final loss", "by seed", "gradient first/last", "similarity")
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
            note="Final loss: mean of the last tenth of the steps. Gradient (first unit over last) and similarity "
            "(tokens or channels behind the last unit) are those before the first step, first seed.",
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
        said = f"loss {effect.mean:+.3f}"
        if effect.low is not None and effect.high is not None:
            said += f" [{effect.low:+.3f}, {effect.high:+.3f}]"
    return Text(text=f"{verdict.fix}: {verdict.verdict}, {said}", tone=_TONES[verdict.verdict])


def _row(arm: Arm) -> tuple[str, ...]:
    finals = [c.final for c in arm.courses]
    first = arm.courses[0]
    mean = f"{statistics.fmean(finals):.3f}"
    diverged = sum(c.diverged for c in arm.courses)
    return (
        arm.name,
        mean + (f" ({diverged} diverged)" if diverged else ""),
        " ".join(f"{c.final:.3f}" for c in arm.courses),
        "–" if first.gradient_ratio is None else short(first.gradient_ratio),
        "–" if first.similarity is None else f"{first.similarity:.2f}",
    )


def _curves(proof: Proof) -> Lines:
    series = []
    for arm in proof.arms:
        steps = min(len(c.losses) for c in arm.courses)
        columns = [[c.losses[k] for c in arm.courses] for k in range(steps)]
        series.append(
            Series(
                name=arm.name,
                y=tuple(statistics.fmean(column) for column in columns),
                low=tuple(min(column) for column in columns),
                high=tuple(max(column) for column in columns),
            )
        )
    return Lines(
        title="training loss by step, mean of the seeds and their range",
        x="step",
        series=tuple(series),
        note="A fix that mends the fault takes its curve down where that of the model as it is stays at guessing.",
    )
