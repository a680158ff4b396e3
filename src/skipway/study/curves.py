"""Learning curves: training loss and test error against the step, with a band over the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from skipway.parts import Lines, Series
from skipway.study.summary import as_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from skipway.train.run import Run

__all__ = ["Curve", "curve_of", "curve_series", "learning_charts", "learning_curves"]

Curve = Mapping[int, float]  # value by step

_MOST_POINTS: Final = 300
_LOSS: Final = (
    "Curves that part early and stay apart; a band that is wide says that the seed matters. The line is the mean over "
    "the seeds, the band reaches from the smallest to the largest."
)
_ERROR: Final = "Where the test error stands at the end, and whether it was still falling: a longer budget may differ."


def learning_curves(groups: Mapping[str, Iterable[Run]]) -> tuple[Lines, ...]:
    """Charts of training loss and test error, a curve for each group of runs; one that nobody wrote is left out.

    Args:
        groups: runs by the name that the legend shows.
    """
    lines = {name: [run.metrics() for run in runs] for name, runs in groups.items()}
    loss, error = (
        {name: [curve_of(run, field) for run in runs] for name, runs in lines.items()}
        for field in ("loss", "test_error")
    )
    return learning_charts(loss, error)


def learning_charts(
    loss: Mapping[str, Sequence[Curve]], error: Mapping[str, Sequence[Curve]], *, of: str = ""
) -> tuple[Lines, ...]:
    """Charts of training loss and test error; one without curves is left out.

    Args:
        loss: training loss in nats, a curve for each seed, by the name that the legend shows.
        error: test error in percent likewise.
        of: whose curves they are, behind the titles; empty where the page says so.
    """

    def chart(curves: Mapping[str, Sequence[Curve]], title: str, note: str, *, unit: str, log: bool) -> Lines:
        series = tuple(made for name, seeds in curves.items() if (made := curve_series(name, seeds)))
        title = f"{title}, {of}" if of else title
        return Lines(series=series, x="step", unit=unit, log=log, title=title, note=note)

    charts = (
        chart(loss, "Training loss", _LOSS, unit="nats", log=True),
        chart(error, "Test error", _ERROR, unit="%", log=False),
    )
    return tuple(c for c in charts if c.series)


def curve_of(lines: Iterable[Mapping[str, object]], field: str) -> dict[int, float]:
    """What lines of metrics say of a field, by step; what is not finite is left out."""
    found = {}
    for line in lines:
        step, value = line["step"], as_number(line.get(field))
        if isinstance(step, int) and value is not None and math.isfinite(value):
            found[step] = value
    return found


def curve_series(name: str, curves: Sequence[Curve]) -> Series | None:
    """One curve: the mean over the seeds, with a band from the smallest to the largest.

    Args:
        name: of the curve.
        curves: value by step, or by another whole number, of each seed; None comes back where all are empty.
    """
    steps = sorted(set().union(*curves)) if curves else []
    if not steps:
        return None
    # Neighbours are joined to one point, so that a long training draws as fast as a short one.
    width = -(-len(steps) // _MOST_POINTS)
    chunks = [steps[i : i + width] for i in range(0, len(steps), width)]
    x, y, low, high = [], [], [], []
    for chunk in chunks:
        means = [math.fsum(v) / len(v) for c in curves if (v := [c[s] for s in chunk if s in c])]
        x.append(float(chunk[-1]))
        y.append(math.fsum(means) / len(means))
        low.append(min(means))
        high.append(max(means))
    several = len(curves) > 1
    return Series(
        name=name, x=tuple(x), y=tuple(y), low=tuple(low) if several else None, high=tuple(high) if several else None
    )
