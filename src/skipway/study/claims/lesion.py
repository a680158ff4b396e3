"""Claim ``lesion``: a residual net stands the loss of a unit, a plain net does not."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._rows import drawn, verdict_by_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skipway.study.outcome import RowRuns, StudyOutcome

__all__ = ["judged"]

_LITTLE: Final = 0.2
_MUCH: Final = 0.5
_CHANCE: Final = 90.0


def judged(outcome: StudyOutcome) -> Judgement:
    """By the median loss of the study ``lesion``."""
    lost = {row.row.label: _lost(row) for row in outcome.rows}
    residual = {name: values for name, values in lost.items() if not name.startswith("plain")}
    hardly = {name: bool(values) and statistics.mean(values) < _LITTLE for name, values in residual.items()}
    destroyed = bool(lost["plain"]) and statistics.mean(lost["plain"]) > _MUCH
    verdict, condition = verdict_by_kind(hardly, provided=destroyed)
    return Judgement(
        verdict=verdict,
        condition=condition,
        figure="share of what was learnt that the median deletion costs: "
        + "; ".join(f"{name} {_percent(values)}" for name, values in lost.items()),
        words="; ".join(filter(None, (_words(row) for row in outcome.rows))),
        numbers={row.row.label: {str(k): dict(v) for k, v in row.measured.items()} for row in outcome.rows},
        parts=drawn(outcome),
    )


def _lost(row: RowRuns) -> list[float]:
    """For each seed: median rise of the error, as a share of the way from the whole net's error to chance."""
    return [_share(m) for _, m in sorted(row.measured.items()) if m.get("error_whole", _CHANCE) < _CHANCE - 1]


def _share(measured: Mapping[str, float]) -> float:
    return measured["median_delta"] / (_CHANCE - measured["error_whole"])


def _percent(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.0f} %" for value in values) or "nothing was learnt"


def _words(row: RowRuns) -> str:
    seeds = [m for _, m in sorted(row.measured.items()) if "error_whole" in m]
    if not seeds:
        return ""
    within = ", ".join(f"{m['units_within_3_points']} of {m['units']}" for m in seeds)
    worst = ", ".join(f"{m['largest_delta']:+.1f}" for m in seeds)
    whole_net = ", ".join(f"{m['error_whole']:.1f}" for m in seeds)
    return (
        f"{row.row.label}: error of the whole net {whole_net} %, the worst deletion {worst} points, {within} cost ≤ 3"
    )


@claim(
    "lesion",
    source="001 (residual connections), the ensemble view; Veit et al. 2016, arXiv 1605.06431, figure 3",
    statement="Deleting a layer hardly hurts a residual net and destroys a plain one.",
    measurement="Test error of trained nets of 56 layers with one unit deleted (plain: one block that keeps its "
    "shape), for each in turn, as a share of the way from the whole net's error to chance (90 %).",
    criterion="Holds if the median deletion costs every residual net less than 20 % of what was learnt, and the plain "
    "net of the same depth more than 50 %, in the mean over the seeds; holds only if the unit is of the kind that "
    "loses less, if one of the two does.",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("lesion"))
