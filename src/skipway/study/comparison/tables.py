"""The comparison as tables: one with everything, and two that fit a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.parts import Table
from skipway.report.numbers import count_text, digits_to_show, number_text, short

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.study.comparison.comparison import Comparison
    from skipway.study.effects import Effect, Spread
    from skipway.study.summary import Summary

__all__ = ["cost_table", "effect_text", "interval_text", "number_text", "result_table", "spread_text", "whole_table"]

_NOTE_EFFECT: Final = (
    "An interval that leaves 0 out: it is the 95-percent interval of the mean difference in test error, paired by seed "
    "(Student's t, each design against the reference alone); below 0 the design errs less."
)
_NOTE_ONE_SEED: Final = "Nothing yet: one seed has no spread, and a difference may be chance."
_NOTE_COST: Final = (
    "What the error costs. Speed was measured alone, with all cores; seconds are of training beside other runs. "
    "Gradient: norm at the first unit (layer, where there are no units) over that at the last, first seed; far from 1 "
    "the ends of the net learn at different rates."
)

_Column = tuple[str, "Callable[[Summary], str]"]


def spread_text(found: Spread | None, digits: int) -> str:
    """``12.34 ± 0.56``; the mean alone where there is one value; ``–`` for None."""
    if found is None:
        return "–"
    mean = number_text(found.mean, digits)
    # A mean that is told by its power of ten has left all bounds, and so has its spread.
    deviation = "" if found.sd is None or "e" in mean else f" ± {found.sd:.{digits}f}"
    return f"{mean}{deviation}"


def effect_text(effect: Effect | None, digits: int = 1, *, seeds: int = 1) -> str:
    """``-12.3 [-14.5, -10.1]``, with what it means where no difference is shown.

    Args:
        effect: of a design; None where there is no pair.
        digits: decimals.
        seeds: that were planned: where one pair of several is left, one seed is not what was asked for.
    """
    if effect is None:
        return "–"
    if effect.low is None or effect.high is None:
        return f"{interval_text(effect, digits)} ({'one pair' if seeds > 1 else 'one seed'})"
    return interval_text(effect, digits) + " not shown" * (not effect.shown)


def interval_text(effect: Effect, digits: int) -> str:
    """``-12.3 [-14.5, -10.1]``; the mean alone where there is no interval.

    Args:
        effect: of a design.
        digits: decimals; more where an interval that leaves 0 out would otherwise end at 0.
    """
    if effect.low is None or effect.high is None:
        return number_text(effect.mean, digits, signed=True)
    digits = digits_to_show(effect.low, effect.high, digits)
    mean, low, high = (number_text(value, digits, signed=True) for value in (effect.mean, effect.low, effect.high))
    return f"{mean} [{low}, {high}]"


def result_table(comparison: Comparison) -> Table:
    """Errors, losses and effects."""
    return _table(comparison, _results(comparison), title="Result", note=_effect_note(comparison))


def cost_table(comparison: Comparison) -> Table:
    """Size, speed and gradient."""
    return _table(comparison, _costs(comparison), title="Cost and gradient", note=_NOTE_COST)


def whole_table(comparison: Comparison) -> Table:
    """Everything."""
    return _table(
        comparison, (*_results(comparison), *_costs(comparison)), title="Comparison",
        note=f"{_effect_note(comparison)} {_NOTE_COST}",
    )  # fmt: skip


def _effect_note(comparison: Comparison) -> str:
    if len(comparison.models) == 1:
        return ""
    return _NOTE_EFFECT if len(comparison.plan.seeds) > 1 else _NOTE_ONE_SEED


def _table(comparison: Comparison, columns: tuple[_Column, ...], *, title: str, note: str) -> Table:
    names = tuple(name for name, _ in columns)
    rows = tuple((model, *(text(summary) for _, text in columns)) for model, summary in comparison.summaries.items())
    return Table(columns=("design", *names), rows=rows, title=title, numeric=names, note=note)


def _results(comparison: Comparison) -> tuple[_Column, ...]:
    seeds = len(comparison.plan.seeds)

    def effect(summary: Summary) -> str:
        if summary.model == comparison.plan.reference:
            return "reference"
        return effect_text(summary.effect, seeds=seeds)

    against: tuple[_Column, ...] = (("error − reference's [95 %]", effect),) if len(comparison.models) > 1 else ()
    return (
        ("test error %", lambda s: spread_text(s.test_error, 2)),
        ("train loss", lambda s: spread_text(s.train_loss, 3)),
        *against,
        ("training", lambda s: _training(s, seeds)),
    )


def _training(summary: Summary, seeds: int) -> str:
    if summary.n < seeds:
        return f"{summary.n} of {seeds} over"
    if not summary.failed:
        return "ok"
    return "failed" if len(summary.failed) == summary.n else f"failed {len(summary.failed)} of {summary.n}"


def _costs(comparison: Comparison) -> tuple[_Column, ...]:
    samples = "images/s" if _has_images(comparison) else "samples/s"
    return (
        ("parameters", lambda s: _count(s.parameters)),
        ("FLOP", lambda s: _count(s.flops)),
        (samples, lambda s: _count(s.samples_per_sec)),
        ("seconds", lambda s: "–" if s.seconds is None else f"{s.seconds:.0f}"),
        ("grad start", lambda s: short(s.gradient_start)),
        ("grad end", lambda s: short(s.gradient_end)),
    )


def _count(value: float | None) -> str:
    return "–" if value is None else count_text(value)


def _has_images(comparison: Comparison) -> bool:
    for runs in comparison.runs.values():
        for run in runs.values():
            if run.folder.environment_path.exists():
                return len(run.environment["data"]["input_shape"]) == 3
    return True
