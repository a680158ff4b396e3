"""Two orderings side by side: Kendall's τ-b, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Ordering", "kendall"]

_DRAWS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """How far two orderings of the same rows agree.

    Args:
        rows: that both order.
        tau: Kendall's τ-b: 1 for the same order, 0 for none in common, -1 for the reverse.
        low, high: 95-percent interval, by drawing the seeds of every row anew; None where no row has two seeds.
    """

    rows: int
    tau: float
    low: float | None
    high: float | None


def kendall(published: Sequence[float], ours: Sequence[Sequence[float]]) -> Ordering | None:
    """Kendall's τ-b between published values and the means of ours.

    Infinity stands for a row that failed; rows that failed rank last together, as ties, which is why it is τ-b
    (Kendall 1945). The interval is the percentile bootstrap over seeds: it says how much the seeds matter, not how far
    other rows would agree.

    Args:
        published: a value for each row.
        ours: for each row the value of each seed; infinity for a seed that failed.

    Returns:
        None where fewer than two rows are known, or all are tied.
    """
    import numpy as np

    known = [(p, [v for v in values if not math.isnan(v)]) for p, values in zip(published, ours, strict=True)]
    known = [(p, values) for p, values in known if values and not math.isnan(p)]
    if len(known) < 2:
        return None
    places = [p for p, _ in known]
    tau = _tau(places, [centre(values) for _, values in known])
    if tau is None:
        return None
    if max(len(values) for _, values in known) < 2:
        return Ordering(rows=len(known), tau=tau, low=None, high=None)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(_DRAWS):
        means = [centre([values[k] for k in rng.integers(len(values), size=len(values))]) for _, values in known]
        value = _tau(places, means)
        if value is not None:
            drawn.append(value)
    low, high = np.quantile(drawn, [0.025, 0.975]) if drawn else (None, None)
    return Ordering(rows=len(known), tau=tau, low=_float(low), high=_float(high))


def centre(values: Sequence[float]) -> float:
    """Mean of the seeds that did not fail; infinity where half of them or more did."""
    finite = [v for v in values if math.isfinite(v)]
    return math.fsum(finite) / len(finite) if 2 * len(finite) > len(values) else math.inf


def _tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    from scipy.stats import kendalltau

    tau = float(kendalltau(_ranks(a), _ranks(b), variant="b").statistic)
    return None if math.isnan(tau) else tau


def _ranks(values: Sequence[float]) -> list[int]:
    order = sorted(set(values))
    return [order.index(v) for v in values]


def _float(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]  # a numpy number
