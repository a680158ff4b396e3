"""The inspector's answers on public models: units, shortcut kinds, after kinds, proofs. `score.py` prints them."""

from __future__ import annotations

import pytest

from zoo.models import SAMPLE, ZOO
from zoo.score import judge
from zoo.truth import TRUTHS

pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries' deprecations

EPS = 32  # the bound on a proof, in eps of the compute dtype


def _check(name: str, *, train: bool = False) -> None:
    score = judge(name, train=train)
    assert score.error == ""
    assert score.wrong == []
    assert score.unproved == 0
    assert score.proof_error <= EPS


@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str) -> None:
    _check(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in ZOO if n not in SAMPLE])
def test_rest(name: str) -> None:
    _check(name)


def test_truths_agree_with_themselves() -> None:
    """The number of shortcuts, of afters and of units is one number."""
    for name, truth in TRUTHS.items():
        totals = {
            sum(int(item.rpartition("*")[2]) for item in alternative.split())
            for text in (truth.shortcut, truth.after)
            if text is not None
            for alternative in text.split(" | ")
        }
        if truth.units is not None:
            totals.add(truth.units + truth.long_skips)
        assert len(totals) <= 1, f"{name}: {totals}"


def test_the_zoo_is_whole() -> None:
    assert len(ZOO) == 169
    assert sum(t.units is not None for t in TRUTHS.values()) == 147
