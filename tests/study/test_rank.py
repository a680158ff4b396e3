"""Kendall's τ-b against values worked out by hand, against SciPy, and what the interval is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from skipway.study.rank import centre, kendall

FAIL = math.inf


@pytest.mark.parametrize(
    ("published", "ours", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [40, 30, 20, 10], -1.0),
        # Of six pairs one is the other way round: (5 - 1) / 6.
        ([1, 2, 3, 4], [10, 30, 20, 40], 4 / 6),
        # A tie of ours leaves five pairs of ours, six of theirs: 5 / √(6 · 5).
        ([1, 2, 3, 4], [10, 20, 20, 40], 5 / math.sqrt(30)),
        # Two rows failed in both, and are one tie in both: 5 / √(5 · 5).
        ([1, 2, FAIL, FAIL], [10, 20, FAIL, FAIL], 1.0),
        # The third row fails with us alone: five pairs agree; they have 6, we 5.
        ([1, 2, 3, FAIL], [10, 20, FAIL, FAIL], 5 / math.sqrt(30)),
        # A row that failed there and is our best: 3 of its pairs disagree, the other 3 agree.
        ([1, 2, 3, FAIL], [20, 30, 40, 10], 0.0),
    ],
)
def test_by_hand(published: list[float], ours: list[float], tau: float) -> None:
    found = kendall(published, [[value] for value in ours])
    assert found is not None
    assert found.tau == pytest.approx(tau, abs=1e-12)
    assert (found.rows, found.low, found.high) == (4, None, None)


values = st.sampled_from([1.0, 2.0, 3.0, 4.0, FAIL])


@given(st.lists(st.tuples(values, values), min_size=2, max_size=9))
def test_against_scipy(pairs: list[tuple[float, float]]) -> None:
    # SciPy calls infinities tied only if they are given as ranks.
    ranks = [[sorted(set(column)).index(v) for v in column] for column in zip(*pairs, strict=True)]
    theirs = float(kendalltau(*ranks, variant="b").statistic)
    found = kendall([a for a, _ in pairs], [[b] for _, b in pairs])
    if math.isnan(theirs):
        assert found is None
    else:
        assert found is not None
        assert found.tau == pytest.approx(theirs, abs=1e-12)


def test_rows_that_are_not_known_do_not_count() -> None:
    found = kendall([1, 2, math.nan, 4], [[1.0], [2.0], [0.0], []])
    assert found is not None
    assert (found.rows, found.tau) == (2, 1.0)
    assert kendall([1, 2], [[1.0], []]) is None
    assert kendall([1, 2], [[FAIL], [FAIL]]) is None


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [([1.0, 3.0], 2.0), ([1.0, 3.0, FAIL], 2.0), ([1.0, FAIL], FAIL), ([FAIL, FAIL, 1.0], FAIL), ([], FAIL)],
)
def test_a_row_fails_when_half_of_its_seeds_do(seeds: list[float], expected: float) -> None:
    assert centre(seeds) == expected


def test_the_interval_is_that_of_drawing_seeds_anew() -> None:
    # The mean of two seeds drawn from 5 and 25 is 5, 15 or 25, once, twice, once in four: below, between or above the
    # other rows, where τ is a third, one, a third.
    published, ours = [1.0, 2.0, 3.0], [[10.0, 10.0], [5.0, 25.0], [20.0, 20.0]]
    found = kendall(published, ours)
    assert found is not None
    assert (found.tau, found.low, found.high) == (1.0, pytest.approx(1 / 3), 1.0)
    still = kendall(published, [[v, v] for v in (10.0, 15.0, 20.0)])
    assert still is not None
    assert (still.low, still.high) == (1.0, 1.0)
    assert kendall(published, ours) == found  # the draws are the same every time


def test_a_row_with_one_seed_is_not_sure() -> None:
    found = kendall([1.0, 2.0, 3.0], [[10.0], [15.0, 16.0], [20.0, 21.0]])
    assert found is not None
    assert (found.tau, found.low, found.high) == (1.0, None, None)


def test_an_interval_by_a_slow_twin() -> None:
    rng = np.random.default_rng(3)
    published = [6.61, 8.7, 6.91, 12.22, FAIL]
    ours = [list(rng.normal(mean, 3, size=3)) for mean in (60, 66, 63, 70)] + [[FAIL, FAIL, 80.0]]
    found = kendall(published, ours)
    assert found is not None
    drawn = []
    for _ in range(800):
        means = [centre(list(rng.choice(seeds, size=3))) for seeds in ours]
        order = sorted(means)
        drawn.append(kendalltau([0, 2, 1, 3, 4], [order.index(m) for m in means], variant="b").statistic)
    # Two bootstraps of a handful of possible values: their quantiles are the same values.
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.1)
