"""Each program with a fault is convicted, at its place and as gravely as it deserves; healthy ones are left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import faults.programs  # noqa: F401  # fills the list
from faults.case import CASES, FaultCase
from faults.verdict import verdict
from skipway.diagnostics.finding import SEVERITIES, at_least
from skipway.diagnostics.rules import RULES

if TYPE_CHECKING:
    from skipway import Inspection

# What PyTorch says about a program of ours whose fault is just that.
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")


def parameters(*, healthy: bool) -> list[Any]:
    slow = pytest.mark.exhaustive
    return [
        pytest.param(c, id=c.id, marks=[slow] if c.options.get("exhaustive") else [])
        for c in CASES
        if c.healthy is healthy
    ]


def findings(inspection: Inspection) -> str:
    return "\n".join(f"{f.severity} {f.rule} at {f.path!r}: {f.message}" for f in inspection.findings) or "no finding"


@pytest.mark.parametrize("case", parameters(healthy=False))
def test_fault_is_convicted(case: FaultCase) -> None:
    if case.rule not in RULES:
        pytest.skip(f"no rule {case.rule} yet")
    assert case.severity is not None
    inspection = verdict(case)
    convicted = [
        f
        for f in inspection.findings
        if f.rule == case.rule and at_least(f.severity, case.severity) and (case.where or "") in f.path
    ]
    wanted = f"{case.severity} {case.rule}" + (f" at …{case.where}…" if case.where else "")
    assert convicted, f"{case.reason}\nwanted: {wanted}\nfound:\n{findings(inspection)}"
    for finding in convicted:
        assert finding.fix, "a finding names its fix"
        assert finding.evidence, "a finding shows its evidence"
        assert finding.message


@pytest.mark.parametrize("case", parameters(healthy=True))
def test_healthy_is_left_alone(case: FaultCase) -> None:
    inspection = verdict(case)
    may = case.options.get("may")
    tolerated = SEVERITIES[SEVERITIES.index(may) :] if may else ()
    accused = [f for f in inspection.findings if f.rule == case.rule and f.severity not in tolerated]
    assert not accused, f"{case.reason}\nfound:\n{findings(inspection)}"
    errors = [f for f in inspection.findings if f.severity == "error"]
    assert not errors, f"no healthy program has an error ({case.reason})\nfound:\n{findings(inspection)}"
