"""What a few seeds tell: mean and spread of a design, and the difference between two designs, paired by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Effect", "Spread", "paired_effect", "spread"]

_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and spread of a few values.

    Args:
        n: how many.
        mean: of them.
        sd: sample standard deviation (divided by n - 1); None for fewer than two values.
        low, high: smallest and largest.
    """

    n: int
    mean: float
    sd: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Difference of a design from a reference, the same seed against the same seed.

    Args:
        n: pairs, that is seeds that both have.
        mean: mean of design - reference, in the unit of the values; below 0 the design has less.
        low, high: interval of the mean by Student's t; None for fewer than two pairs.
    """

    n: int
    mean: float
    low: float | None
    high: float | None

    @property
    def shown(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and spread of the values that are finite; None if there are none."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return None
    return Spread(n=len(finite), mean=_mean(finite), sd=_deviation(finite), low=min(finite), high=max(finite))


def paired_effect(reference: Mapping[int, float], design: Mapping[int, float]) -> Effect | None:
    """Mean difference d of two designs over the seeds that both have, with its 95-percent interval.

        d ± t · s / √n        s sample deviation of the differences · t quantile of Student's t with n - 1 degrees

    Args:
        reference: value by seed.
        design: value by seed.

    Returns:
        The effect; None if there is no pair of finite values.
    """
    pairs = [(reference[seed], design[seed]) for seed in sorted(reference.keys() & design.keys())]
    differences = [b - a for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if not differences:
        return None
    mean, sd, n = _mean(differences), _deviation(differences), len(differences)
    if sd is None:
        return Effect(n=n, mean=mean, low=None, high=None)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, (1 + _CONFIDENCE) / 2)) * sd / math.sqrt(n)
    return Effect(n=n, mean=mean, low=mean - half, high=mean + half)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
