"""The question and the answer, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.parts import Text, Tone
from skipway.report.numbers import counted, digits_to_show, number_text
from skipway.study.comparison.tables import spread_text

if TYPE_CHECKING:
    from skipway.study.comparison.comparison import Comparison
    from skipway.study.effects import Effect
    from skipway.study.summary import Summary

__all__ = ["answer", "question"]

# As many as the errors beside a difference have.
_DIGITS: Final = 2


def question(comparison: Comparison) -> str:
    """What was asked, in a sentence."""
    plan = comparison.plan
    recipe = plan.settings.recipe
    return (
        f"{_listed(plan.models, ' against ')} on {plan.settings.data.name}: {recipe.steps} steps of "
        f"{recipe.batch_size}, {counted(len(plan.seeds), 'seed')} each"
    )


def answer(comparison: Comparison) -> list[Text]:
    """What was found, most important first, in sentences."""
    known = {name: s for name, s in comparison.summaries.items() if s.test_error is not None}
    texts = [*_missing(comparison), *_failures(comparison)]
    if not known:
        return [*texts, Text(text="No run has a test error.", tone="warning")]
    if len(comparison.models) == 1:
        ((name, only),) = known.items()
        return [*texts, Text(text=f"{name}: test error {spread_text(only.test_error, _DIGITS)} %.")]
    against = [_against(name, s, comparison) for name, s in known.items() if name != comparison.plan.reference]
    return [*texts, *against, *_nearest(comparison, known)]


def _missing(comparison: Comparison) -> list[Text]:
    if comparison.complete:
        return []
    planned = len(comparison.plan.pairs())
    text = f"{len(comparison.missing)} of {planned} runs are not over; what follows is of those that are."
    return [Text(text=f"{text}\nTo go on: skipway compare --resume {comparison.path}", tone="warning")]


def _failures(comparison: Comparison) -> list[Text]:
    found = []
    for name, summary in comparison.summaries.items():
        if summary.failed:
            how = "training failed" if len(summary.failed) == summary.n else "training failed in some runs"
            text = f"{name}: {how} ({len(summary.failed)} of {summary.n}): {_how_it_failed(comparison, name)}."
            found.append(Text(text=text, tone="bad"))
    return found


def _how_it_failed(comparison: Comparison, model: str) -> str:
    runs = [comparison.runs[model][seed] for seed in comparison.summaries[model].failed]
    if all(run.status == "diverged" for run in runs):
        return "the loss stopped being finite"
    if any(run.status == "diverged" for run in runs):
        return "the loss stopped being finite, or stayed at that of guessing"
    return "the training loss stayed at that of guessing"


def _against(name: str, summary: Summary, comparison: Comparison) -> Text:
    reference = comparison.plan.reference
    if summary.effect is None:
        return Text(text=f"{name} and {reference} have {_no_pair((name, reference), comparison)}.", tone="warning")
    text, tone = _compared(name, reference, summary.effect, seeds=len(comparison.plan.seeds))
    errors = [spread_text(comparison.summaries[n].test_error, _DIGITS) for n in (name, reference)]
    return Text(text=f"{text} Test errors: {errors[0]} % and {errors[1]} %.", tone=tone)


def _no_pair(names: tuple[str, str], comparison: Comparison) -> str:
    """Why two designs cannot be compared: no seed is over in both, or one of each pair diverged."""
    over = [{s for s, run in comparison.runs.get(n, {}).items() if run.folder.finished} for n in names]
    if not over[0] & over[1]:
        return "no seed in common that is over"
    said = []
    for name, seeds in zip(names, over, strict=True):
        diverged = sum(comparison.runs[name][seed].status == "diverged" for seed in seeds)
        said += [f"{name} diverged in {diverged} of {len(seeds)}"] if diverged else []
    return f"no seed in which both have a test error: {', '.join(said)}"


def _nearest(comparison: Comparison, known: dict[str, Summary]) -> list[Text]:
    """The best design against the second, where neither is the reference."""
    means = {name: s.test_error.mean for name, s in known.items() if s.test_error is not None}
    ranked = sorted(means, key=lambda name: means[name])
    if len(ranked) < 3 or comparison.plan.reference in ranked[:2]:
        return []
    effect = comparison.effect(ranked[0], ranked[1])
    if effect is None:
        return []
    text, _ = _compared(ranked[0], ranked[1], effect, seeds=len(comparison.plan.seeds))
    return [Text(text=text)]


def _compared(name: str, other: str, effect: Effect, *, seeds: int) -> tuple[str, Tone]:
    if effect.low is None or effect.high is None:
        less = "fewer" if effect.mean < 0 else "more"
        points = f"{number_text(abs(effect.mean), _DIGITS)} points {less} test errors than {other}"
        pair = f"one pair of {seeds} seeds" if seeds > 1 else "one seed"
        return f"{name} makes {points}, with {pair}: whether that is chance cannot be said.", "warning"
    low, high = (effect.low, effect.high) if effect.mean >= 0 else (-effect.high, -effect.low)
    digits = digits_to_show(low, high, _DIGITS)
    mean, low_text, high_text = (number_text(value, digits) for value in (abs(effect.mean), low, high))
    points = f"{mean} points [{low_text}, {high_text}]"
    if not effect.shown:
        signed = f"{_signed(effect.mean)} points [{_signed(effect.low)}, {_signed(effect.high)}]"
        found = f"{name} − {other} = {signed}, {effect.n} seeds"
        return f"Between {name} and {other} no difference is shown: {found}.", "plain"
    if effect.mean < 0:
        return f"{name} is better than {other} by {points}.", "good"
    return f"{name} is worse than {other} by {points}.", "bad"


def _signed(value: float) -> str:
    return number_text(value, _DIGITS, signed=True)


def _listed(names: tuple[str, ...], joint: str) -> str:
    if len(names) < 3:
        return joint.join(names)
    return f"{names[0]}{joint}{', '.join(names[1:-1])} and {names[-1]}"
