"""The two programs of every rule: it convicts the first and is silent on the second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from skipway.diagnostics.inspect import inspect
from skipway.diagnostics.rules import RULES

if TYPE_CHECKING:
    from skipway.diagnostics.inspection import Inspection


def judged(program: str) -> Inspection:
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)  # noqa: S102  # the programs are our own, shown by `skipway rules RULE`
    return inspect(names["model"], names["batch"], names.get("loss"), names.get("optimizer"))


@pytest.mark.parametrize("name", list(RULES))
def test_the_faulty_program_is_convicted_and_its_twin_is_not(name: str) -> None:
    rule = RULES[name]
    assert [f.severity for f in judged(rule.faulty).findings if f.rule == name], "the faulty program got away"
    assert not [f for f in judged(rule.healthy).findings if f.rule == name], "the healthy program was convicted"
    assert rule.faulty != rule.healthy
