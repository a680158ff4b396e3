"""What a few seeds tell: mean and spread of a design, and the difference between two designs, paired by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Effect", "Spread", "paired_effect", "spread"]

_CONFIDENCE: Final = 0.95
# Differences of floating-point numbers that are equal on paper differ by less than this, relative to the numbers.
_ROUNDING: Final = 1e-12


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

    An interval of no width, of differences that are all the same, shows nothing: a few equal values do not say how far
    others would lie apart. Where the values have steps, `paired_effect` is told the step, and the interval has a width.
    """

    n: int
    mean: float
    low: float | None
    high: float | None

    @property
    def shown(self) -> bool:
        """Whether the interval has a width and leaves 0 out."""
        return (
            self.low is not None and self.high is not None and self.low < self.high and not self.low <= 0 <= self.high
        )


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and spread of the values that are finite; None if there are none."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return None
    return Spread(n=len(finite), mean=_mean(finite), sd=_deviation(finite), low=min(finite), high=max(finite))


def paired_effect(reference: Mapping[int, float], design: Mapping[int, float], *, step: float = 0.0) -> Effect | None:
    """Mean difference d of two designs over the seeds that both have, with its 95-percent interval.

        d ± t · max(s, step / √6) / √n

    s is the sample deviation of the differences, t the quantile of Student's t with n - 1 degrees. Values that come in
    steps, as the share of wrong answers does, are rounded: rounding has a deviation of step / √12, and that of a
    difference of two is step / √6. A few differences that fall on the same step would otherwise have no spread at all.

    Args:
        reference: value by seed.
        design: value by seed.
        step: the smallest difference that two values can have; 0 where they have no steps.

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
    if sd <= _ROUNDING * max(abs(value) for pair in pairs for value in pair if math.isfinite(value)):
        sd = 0.0
    sd = max(sd, step / math.sqrt(6))
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
