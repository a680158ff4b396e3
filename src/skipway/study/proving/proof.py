"""What the trainings of a proof showed: courses by fix, and a verdict for each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from skipway.report.shown import Shown
from skipway.study.effects import Effect, paired_effect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from skipway.parts import Part
    from skipway.study.proving.trial import Course

__all__ = ["AS_IT_IS", "Arm", "Proof", "ProofVerdict", "Verdict", "judge_arms"]

AS_IT_IS: Final = "as it is"
Verdict = Literal["confirmed", "not confirmed", "not decidable in this budget"]

# Of the loss of guessing: what a loss has to come down by to count as learning, and a fix has to gain to matter.
_MATTERS: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of training the model: its name, and a course for each seed."""

    name: str
    courses: tuple[Course, ...]

    @property
    def broken(self) -> int:
        """Runs that diverged, or ended with no number."""
        return sum(_broken(c) for c in self.courses)

    def finals(self, chance: float) -> dict[int, float]:
        """Final loss by seed; a run that diverged, or ended above the loss of guessing, has learnt what guessing has.

        How far a loss got before a run was stopped says nothing: one of 10¹⁰ would swallow every other seed.

        Args:
            chance: loss of guessing.
        """
        return {c.seed: chance if _broken(c) else min(c.final, chance) for c in self.courses}


@dataclass(frozen=True, kw_only=True)
class ProofVerdict:
    """What is to be said of one fix.

    Args:
        fix: its name.
        verdict: ``"confirmed"``: the interval of the effect lies below 0 and the effect is at least 5 % of the loss of
            guessing, or every run of the model as it is diverges, none under the fix does, and these learn;
            ``"not decidable in this budget"``: neither way has come down from guessing, or the interval holds both 0
            and an effect that would matter; ``"not confirmed"`` else.
        effect: final loss under the fix minus that of the model as it is, paired by seed; a run that diverged or ended
            above the loss of guessing counts as guessing.
    """

    fix: str
    verdict: Verdict
    effect: Effect | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Proof(Shown):
    """The before/after run of `skipway.prove`.

    Args:
        rule: id of the rule whose finding was put to the test.
        model: what the model is called.
        task: what it was trained on, in words.
        chance: loss of guessing.
        settings: steps, batch size and learning rate of each run.
        arms: the model as it is first, then a fix each.
        verdicts: one for each fix.
        seconds: wall-clock time.
        notes: what was done otherwise than one would think.
    """

    rule: str
    model: str
    task: str
    chance: float
    settings: Mapping[str, float | int | str]
    arms: tuple[Arm, ...]
    verdicts: tuple[ProofVerdict, ...]
    seconds: float = 0.0
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def verdict(self) -> Verdict:
        """Of the finding: confirmed if any fix is, undecided if none is and one could not be decided."""
        said = [v.verdict for v in self.verdicts]
        for verdict in ("confirmed", "not decidable in this budget"):
            if verdict in said:
                return verdict
        return "not confirmed"

    def to_dict(self) -> dict[str, Any]:
        """The proof as JSON-ready values."""
        return {
            "schema": "skipway.proof/1.0",
            "rule": self.rule,
            "model": self.model,
            "task": self.task,
            "chance": self.chance,
            "settings": dict(self.settings),
            "verdict": self.verdict,
            "verdicts": [_verdict_dict(v) for v in self.verdicts],
            "arms": [{"name": a.name, "courses": [_course_dict(c) for c in a.courses]} for a in self.arms],
            "seconds": self.seconds,
            "notes": list(self.notes),
        }

    def _parts(self) -> tuple[Part, ...]:
        from skipway.report import proof_parts

        return proof_parts(self)

    def _report(self) -> tuple[Part, ...]:
        from skipway.report import proof_parts

        return proof_parts(self, curves=True)

    def _title(self) -> str:
        return f"skipway · {self.model} · {self.rule}"


def judge_arms(arms: Sequence[Arm], chance: float) -> tuple[ProofVerdict, ...]:
    """A verdict for every arm after the first, against the first."""
    return tuple(_judge(arms[0], arm, chance) for arm in arms[1:])


def _judge(as_it_is: Arm, fixed: Arm, chance: float) -> ProofVerdict:
    before, after = as_it_is.finals(chance), fixed.finals(chance)
    effect = paired_effect(before, after)
    matters = _MATTERS * abs(chance)
    learns = _mean(after) < chance - matters
    learned = learns or _mean(before) < chance - matters
    mended = as_it_is.broken == len(before) and not fixed.broken and learns
    verdict: Verdict = "not confirmed"
    if effect is None or effect.low is None or effect.high is None or not learned:
        verdict = "not decidable in this budget"
    elif mended or (effect.shown and effect.mean <= -matters):
        verdict = "confirmed"
    elif effect.low < -matters and not effect.shown:
        verdict = "not decidable in this budget"
    return ProofVerdict(fix=fixed.name, verdict=verdict, effect=effect)


def _broken(course: Course) -> bool:
    return course.diverged or not math.isfinite(course.final)


def _mean(finals: Mapping[int, float]) -> float:
    values = [v for v in finals.values() if math.isfinite(v)]
    return sum(values) / len(values) if values else math.inf


def _verdict_dict(verdict: ProofVerdict) -> dict[str, Any]:
    effect = verdict.effect
    found = None if effect is None else {"mean": effect.mean, "low": effect.low, "high": effect.high, "n": effect.n}
    return {"fix": verdict.fix, "verdict": verdict.verdict, "effect": found}


def _course_dict(course: Course) -> dict[str, Any]:
    return {
        "seed": course.seed,
        "final": course.final,
        "losses": list(course.losses),
        "gradient_ratio": course.gradient_ratio,
        "similarity": course.similarity,
        "diverged": course.diverged,
    }
