"""Numbers are short and mean what they say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipway.report.numbers import blocks, bytes_text, cosine, count_text, counted, duration_text, percent, short, span


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0"), (1.0, "1.00"), (0.8349, "0.83"), (9.96, "10.0"), (99.6, "100"), (1234.0, "1234"),
        (12345.0, "1.2e4"), (0.0021, "2.1e-3"), (-0.012, "-0.012"), (0.046875, "0.047"), (math.inf, "inf"),
        (math.nan, "nan"),
        (1e-300, "1.0e-300"),
    ],
)  # fmt: skip
def test_short(value: float | None, text: str) -> None:
    assert short(value) == text


@given(st.floats(min_value=-1e300, max_value=1e300))
def test_short_is_short_and_near(value: float) -> None:
    text = short(value)
    assert len(text) <= 9
    assert float(text) == pytest.approx(value, rel=0.06, abs=1e-323)


def test_spans() -> None:
    assert span((1.0, 1.001)) == "1.00"
    assert span((0.5, 2e-6)) == "0.50→2.0e-6"
    assert span(None) == "–"
    assert percent((0.4, 0.4)) == "40%"
    assert percent((0.333, 0.5)) == "33→50%"
    assert percent((0.31, 0.33)) == "32%"
    assert percent((math.nan, 0.5)) == "nan→0.50"


def test_cosines() -> None:
    assert cosine((-0.03, 0.01)) == "-0.01"
    assert cosine((-0.001, 0.002)) == "0.00"
    assert cosine((0.0, 0.2)) == "0.00→0.20"
    assert cosine((math.nan, 0.2)) == "nan→0.20"
    assert cosine(None) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [(9412, "9,412"), (269_722, "269.7 k"), (25_557_032, "25.6 M"), (4_089_184_256, "4.09 G"), (1.5e13, "15.0 T")],
)
def test_counts(value: float, text: str) -> None:
    assert count_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(17, "17 B"), (2048, "2.0 KiB"), (168 << 20, "168 MiB"), (3 << 30, "3.0 GiB")]
)
def test_bytes(value: int, text: str) -> None:
    assert bytes_text(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(41.2, "41 s"), (720, "12 min"), (12_240, "3.4 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_one_of_a_thing_and_several() -> None:
    assert [counted(n, "run") for n in (0, 1, 2, 1000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]


def test_bars() -> None:
    assert [blocks(share, 2) for share in (0, 1 / 16, 0.5, -0.75, 1, 7)] == ["", "▏", "█", "█▌", "██", "██"]
