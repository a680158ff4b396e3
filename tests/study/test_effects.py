"""Means, spreads and paired effects against scipy's own tests and against numbers worked out by hand."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from skipway.study.effects import Effect, paired_effect, spread

ERRORS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=8)


@given(ERRORS)
def test_the_interval_is_that_of_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    before, after = zip(*pairs, strict=True)
    differences = [b - a for a, b in pairs]
    assume(statistics.stdev(differences) > 1e-6)
    effect = paired_effect(dict(enumerate(before)), dict(enumerate(after)))
    assert effect is not None
    expected = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert effect.low == pytest.approx(expected.low, rel=1e-9, abs=1e-9)
    assert effect.high == pytest.approx(expected.high, rel=1e-9, abs=1e-9)
    assert effect.n == len(pairs)


def test_by_hand() -> None:
    # Differences -2, -4, -6: mean -4, deviation 2; t(0.975, 2) = 4.302653 from the table; 4.302653 · 2 / √3 = 4.968276.
    effect = paired_effect({0: 10.0, 1: 20.0, 2: 30.0}, {0: 8.0, 1: 16.0, 2: 24.0})
    assert effect is not None
    assert effect.mean == -4.0
    assert effect.low == pytest.approx(-8.968276, abs=1e-6)
    assert effect.high == pytest.approx(0.968276, abs=1e-6)
    assert not effect.shown


def test_pairs_are_by_seed_and_not_by_place() -> None:
    effect = paired_effect({3: 10.0, 1: 50.0}, {1: 40.0, 2: 0.0, 3: 0.0})
    assert effect == Effect(n=2, mean=-10.0, low=-10.0, high=-10.0)


def test_an_interval_of_no_width_shows_nothing() -> None:
    # Equal on paper, and apart by rounding of the last bit: 0.1 + 0.2 is not 0.3.
    for design in ({0: 1.0, 1: 2.0}, {0: 0.1 + 0.2, 1: 1.3}):
        effect = paired_effect({0: 0.0, 1: 1.0}, design)
        assert effect is not None
        assert effect.low == effect.high
        assert not effect.shown


def test_values_in_steps_are_rounded() -> None:
    # t(0.975, 2) = 4.302653; the deviation 0.5 / √6 = 0.204124; 4.302653 · 0.204124 / √3 = 0.507072.
    effect = paired_effect({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 1.0, 2: 2.0}, step=0.5)
    assert effect is not None
    assert (effect.low, effect.high) == (pytest.approx(-1.507072, abs=1e-6), pytest.approx(-0.492928, abs=1e-6))
    assert effect.shown
    # A spread that is wider than the steps stays what it is.
    wide = ({0: 10.0, 1: 20.0, 2: 30.0}, {0: 8.0, 1: 16.0, 2: 24.0})
    assert paired_effect(*wide, step=0.5) == paired_effect(*wide)


@pytest.mark.parametrize("error", [0.01, 0.02, 0.05, 0.1, 0.3])
def test_two_equal_designs_are_rarely_told_apart(error: float) -> None:
    """Test errors of 360 answers, two seeds: at most one pair of designs in twenty is said to differ."""
    rng = np.random.default_rng(0)
    one, other = (rng.binomial(360, error, size=(2000, 2)) * 100 / 360 for _ in range(2))
    effects = [
        paired_effect(dict(enumerate(a)), dict(enumerate(b)), step=100 / 360)
        for a, b in zip(one.tolist(), other.tolist(), strict=True)
    ]
    assert sum(effect is not None and effect.shown for effect in effects) / 2000 <= 0.05


def test_one_seed_has_no_interval_and_shows_nothing() -> None:
    effect = paired_effect({0: 50.0}, {0: 10.0})
    assert effect == Effect(n=1, mean=-40.0, low=None, high=None)
    assert not effect.shown


def test_equal_designs_show_nothing() -> None:
    same = {0: 5.0, 1: 6.0, 2: 7.0}
    effect = paired_effect(same, same)
    assert effect == Effect(n=3, mean=0.0, low=0.0, high=0.0)
    assert not effect.shown


def test_what_is_not_finite_is_no_pair() -> None:
    effect = paired_effect({0: math.nan, 1: 2.0}, {0: 1.0, 1: 1.0})
    assert effect == Effect(n=1, mean=-1.0, low=None, high=None)
    assert paired_effect({0: 1.0}, {1: 1.0}) is None
    assert paired_effect({0: math.inf}, {0: 1.0}) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_spread(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert found.n == len(values)
    assert found.mean == pytest.approx(statistics.mean(values), rel=1e-9, abs=1e-6)
    assert found.sd == pytest.approx(statistics.stdev(values), rel=1e-6, abs=1e-6)
    assert (found.low, found.high) == (min(values), max(values))


def test_spread_of_few() -> None:
    assert spread([]) is None
    assert spread([math.nan]) is None
    one = spread([3.0, math.inf])
    assert one is not None
    assert (one.n, one.mean, one.sd) == (1, 3.0, None)


@pytest.mark.exhaustive
def test_the_interval_covers_as_often_as_it_says() -> None:
    """Three seeds, 4,000 draws of differences around -1: 95 % of the intervals hold it."""
    import random

    draw = random.Random(0)
    held = 0
    for _ in range(4000):
        effect = paired_effect(dict.fromkeys(range(3), 0.0), {k: draw.gauss(-1.0, 2.0) for k in range(3)})
        assert effect is not None
        assert effect.low is not None
        assert effect.high is not None
        held += effect.low <= -1.0 <= effect.high
    assert held / 4000 == pytest.approx(0.95, abs=0.011)  # three standard errors
