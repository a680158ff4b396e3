"""Every registered claim is written down in full; those that are quick give the verdict that is expected of them."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import pytest
import torch

from skipway.report import to_text
from skipway.study.budgets import BUDGETS
from skipway.study.claim import CLAIMS, VERDICTS, Bench, Judgement
from skipway.study.records.results import Results

if TYPE_CHECKING:
    from pathlib import Path

IDS = list(CLAIMS)
# Each is recomputed by other means in the files beside this one, where also its twin makes the check say otherwise.
# Those that take less than two seconds:
FAST = {
    "act-after-add": "documentary",
    "grad-40-tanh": "does not hold",
    "grad-example": "holds",
    "grad-sum": "holds",
    "product-derivative": "does not hold",
    "projection": "holds only if",
    "shape-condition": "holds",
    "thousand-on-imagenet": "documentary",
    "zero-init": "holds only if",
}
SLOW = {
    "clean-path": "holds",
    "forward-sum": "holds",
    "identity-hard": "holds",
    "lower-bound": "holds only if",
    "merge-average": "holds",
    "merge-multiply": "holds",
    "no-extra-parameters": "holds",
    "not-minus-one": "holds only if",
    "relu-before-add": "holds",
    "scale-product": "holds",
}
# What they find depends on the machine, or on a training of a few steps near a limit: any verdict but "not measured".
OPEN = ("cost-linear", "early-steps", "merge-concat")


@lru_cache(maxsize=1)
def bench(folder: Path) -> Bench:
    return Bench(budget="quick", results=Results(folder / "results"), out=folder / "runs")


@pytest.mark.parametrize("name", IDS)
def test_written_down(name: str) -> None:
    claim = CLAIMS[name]
    assert claim.id == name
    assert claim.file.stem == name.replace("-", "_")
    for text in (claim.source, claim.statement, claim.measurement, claim.criterion):
        assert len(text) > 15
        assert text == text.strip()
        assert "  " not in text
    assert re.search(r"00[013]", claim.source), "names its document"
    assert claim.least in BUDGETS
    assert bool(claim.otherwise) or claim.least == "quick", "says why a smaller budget does not decide it"


@pytest.mark.parametrize("name", IDS)
def test_the_criterion_decides(name: str) -> None:
    """It has a number, or names the alternatives."""
    criterion = CLAIMS[name].criterion
    assert re.search(r"\d", criterion) or re.search(r"\b(if|else)\b", criterion)
    if "documentary" not in criterion.lower():
        assert "hold" in criterion.lower()


def looked_at(judgement: Judgement) -> None:
    """What every judgement has."""
    assert judgement.verdict in VERDICTS
    assert bool(judgement.condition) == (judgement.verdict == "holds only if")
    assert judgement.figure
    assert "\n" not in judgement.figure
    assert re.search(r"\d", judgement.figure), "a measured value"
    for text in (judgement.figure, judgement.words, judgement.condition):
        assert "nan" not in text
        assert "  " not in text
    assert judgement.numbers
    json.dumps(judgement.numbers, allow_nan=False)
    assert to_text(judgement.parts) or not judgement.parts


def run(name: str, folder: Path) -> Judgement:
    before = torch.random.get_rng_state()
    judgement = CLAIMS[name].check(bench(folder))
    assert torch.equal(torch.random.get_rng_state(), before), "the generator is put back"
    looked_at(judgement)
    return judgement


@pytest.mark.parametrize("name", FAST)
def test_verdict(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path).verdict == FAST[name]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SLOW)
def test_slow_verdict(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path).verdict == SLOW[name]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OPEN)
def test_open_verdict(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path).verdict in ("holds", "holds only if", "does not hold")
