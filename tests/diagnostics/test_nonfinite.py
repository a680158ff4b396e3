"""The first operation that makes a number that is not finite."""

from __future__ import annotations

import torch
from torch import nn

from skipway.diagnostics.nonfinite import first_non_finite


def net(running_var: float) -> nn.Module:
    norm = nn.BatchNorm1d(4)
    assert norm.running_var is not None
    norm.running_var.fill_(running_var)
    return nn.Sequential(nn.Identity(), norm)


def test_a_mean_that_overflows_is_found_where_it_does_though_running_statistics_did_before() -> None:
    x = torch.full((3, 4), 3e38)  # their sum is too large for float32
    for running in (1.0, float("inf")):
        found = first_non_finite(net(running), x)
        assert (found["operation"], found["path"]) == ("native_batch_norm", "1")
    assert first_non_finite(net(float("inf")), torch.randn(3, 4)) == {}


def test_running_statistics_that_are_not_finite_are_the_norms_own_fault_in_eval_mode() -> None:
    found = first_non_finite(net(float("nan")).eval(), torch.randn(3, 4))
    assert (found["operation"], found["path"], found["value"]) == ("native_batch_norm", "1", "NaN")


def test_an_operand_that_is_not_finite_blames_nobody() -> None:
    assert first_non_finite(nn.Identity(), torch.full((2, 4), float("nan"))) == {}
