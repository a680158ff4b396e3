"""Branches dropped by chance: where the mean is off in the two modes, and where it is not."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipway.diagnostics.inspect import inspect

RULE = "train-eval-mismatch"


class Dropping(nn.Module):
    def __init__(self, how: str, rate: float) -> None:
        super().__init__()
        self.how, self.rate = how, rate
        self.norm, self.linear, self.drop = nn.LayerNorm(16), nn.Linear(16, 16), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(self.norm(x))
        keep = 1 - self.rate
        mask = (torch.rand(len(x), 1, 1) < keep).to(x.dtype) if self.training and self.rate else None
        if self.how == "unscaled" and mask is not None:
            return x + h * mask
        if self.how == "scaled" and mask is not None:
            return x + h * mask / keep
        if self.how == "scaled in both":
            return x + (h * keep if mask is None else h * mask / keep)
        if self.how == "scaled in eval":
            return x + h * (keep if mask is None else mask)
        if self.how == "skipped" and self.training and random.random() < self.rate:
            return x
        if self.how == "skipped, scaled in eval":
            if self.training:
                return x if random.random() < self.rate else x + h
            return x + keep * h
        if self.how == "always":
            return x + F.dropout(h, 0.2)
        return x + (self.drop(h) if self.how == "dropout" else h)


def accused(how: str, rates: list[float]) -> list[str]:
    torch.manual_seed(0)
    found = inspect(nn.Sequential(*[Dropping(how, rate) for rate in rates]), torch.randn(4, 6, 16))
    runs.clear()
    runs.update(found.runs)
    return [f"{f.severity} {f.path}: {f.message}" for f in found.findings if f.rule == RULE]


runs: dict[str, int] = {}


@pytest.mark.parametrize("how", ["unscaled", "scaled in both", "skipped"])
def test_a_mean_that_is_off_is_an_error(how: str) -> None:
    (finding,) = accused(how, [0.3] * 6)
    assert finding.startswith("error 0: in training the branch adds ")
    expected = {"unscaled": 0.7, "scaled in both": 1 / 0.7, "skipped": 0.7}[how]
    assert float(finding.split(" adds ")[1].split()[0]) == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("how", ["scaled", "scaled in eval", "skipped, scaled in eval"])
def test_a_mean_that_holds_is_no_finding(how: str) -> None:
    assert accused(how, [0.3] * 6) == []


def test_rates_that_rise_with_depth_are_judged_where_they_are_high() -> None:
    rates = [0.5 * k / 7 for k in range(8)]
    (finding,) = accused("unscaled", rates)
    assert "error" in finding
    assert accused("scaled", rates) == []


def test_rare_drops_that_are_not_seen_convict_nobody() -> None:
    for rate in (0.01, 0.02, 0.05, 0.1):
        assert accused("scaled", [rate] * 6) == [], rate


def test_dropout_that_never_stops_is_an_error() -> None:
    (finding,) = accused("always", [0.0] * 4)
    assert finding == "error 0: the branch is still dropped at random in eval mode ×4"


def test_dropout_modules_cost_no_run() -> None:
    assert accused("dropout", [0.0] * 4) == []
    assert RULE not in runs


def test_layers_of_several_units_that_are_left_out_are_meant_so() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Sequential(Dropping("plain", 0.0), Dropping("plain", 0.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if self.training and random.random() < 0.3 else self.parts(x)

    found = inspect(nn.Sequential(*[Layer() for _ in range(4)]), torch.randn(4, 6, 16))
    rules = {f.rule for f in found.findings}
    assert RULE not in rules
    assert "ddp-unsafe-skip" in rules
