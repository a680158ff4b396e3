"""What a monitor raises during training, once for a rule and a unit, and on what it stays silent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from diagnostics.monitor_nets import Tokens, tokens, train
from skipway.diagnostics.monitor import Monitor

if TYPE_CHECKING:
    import pytest


def rules(**change: Any) -> list[tuple[str, str]]:
    """Findings on nine equal records of a healthy net, with one number of every unit (or of the third) changed."""
    monitor = train(Tokens(), tokens, 1)
    assert monitor is not None
    assert monitor._watch is not None
    record = monitor.history[0]
    only = change.pop("only", None)
    units = tuple(replace(u, **change) if only in (None, k) else u for k, u in enumerate(record.units))
    found = []
    for _ in range(9):
        found += monitor._watch.look(replace(record, units=units))
    return [(f.rule, f.path) for f in found]


def test_a_healthy_net_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    monitor = train(Tokens(), tokens, 10, every=1)
    assert monitor is not None
    assert monitor.findings == []
    assert caplog.messages == []
    assert rules() == []


def test_each_rule_is_raised_once() -> None:
    third = "blocks.1.branch#1"
    assert rules(only=2, branch_share=1e-7) == [("dead-unit", third)]
    assert rules(branch_share=1e-7) == []  # all alike: LayerScale, a zero-initialised net
    assert rules(only=2, largest=30000.0) == [("fp16-headroom", third)]
    assert rules(only=2, largest=9000.0) == []
    assert rules(only=11, similarity=0.999) == [("rank-collapse", "blocks.5.branch#2")]
    assert rules(similarity=0.999) == []  # alike from the start
    assert rules(only=2, stream_rms=float("nan")) == [("non-finite", third)]


def test_nan_in_a_weight_is_said_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    model = Tokens()
    with torch.no_grad():
        model.blocks[2].branch.up.weight.fill_(float("nan"))
    monitor = train(model, tokens, 3, every=1)
    assert isinstance(monitor, Monitor)
    assert monitor.findings[0].rule == "non-finite"
    assert monitor.findings[0].severity == "error"
    assert len(caplog.messages) >= 1
