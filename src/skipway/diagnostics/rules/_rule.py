"""What a rule is and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skipway.diagnostics.finding import SEVERITIES, Finding, Severity
from skipway.registry import Registry

if TYPE_CHECKING:
    from skipway.diagnostics.layer import Layer
    from skipway.trace.graph import Graph
    from skipway.units.unit import Unit

__all__ = ["RULES", "Check", "Evidence", "Rule", "rule", "run_rules"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an inspection knows when the rules run.

    Args:
        units: residual units with their numbers.
        graph: the recorded run.
        layers: weighted layers of the trunk with their numbers, when there are fewer than two units.
        scopes: for each unit the module calls (ids in ``graph.calls``) that hold its join, innermost first.
        finite: whether every number on the stream and every output was finite.
        first_non_finite: where the first NaN or infinity was made, if one was: operation, module path, operands.
        measured: whether the signal was measured at all.
    """

    units: Sequence[Unit]
    graph: Graph
    layers: Sequence[Layer] = ()
    scopes: Sequence[Sequence[int]] = ()
    finite: bool = True
    first_non_finite: dict[str, str] = field(default_factory=dict)
    measured: bool = False


Check = Callable[[Evidence], Iterator[Finding]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of the registry.

    Args:
        id: stable id, part of the public interface.
        severity: the gravest severity that it gives.
        summary: the fault in one sentence.
        explanation: how it is recognised, and what it is easily confused with.
        fix: what mends it.
        source: where rule and threshold come from.
        check: yields the findings.
        symptom: whether it shows an effect, whose cause other rules may name; symptoms come after causes.
    """

    id: str
    severity: Severity
    summary: str
    explanation: str
    fix: str
    source: str
    check: Check
    symptom: bool = False


RULES: Registry[Rule] = Registry("rule", "skipway.diagnostics.rules")


def rule(
    id: str,  # noqa: A002  # a rule has an id
    *,
    severity: Severity,
    summary: str,
    explanation: str,
    fix: str,
    source: str,
    symptom: bool = False,
) -> Callable[[Check], Check]:
    """Register a function as the check of a rule."""

    def register(check: Check) -> Check:
        RULES.add(
            id,
            Rule(
                id=id,
                severity=severity,
                summary=summary,
                explanation=explanation,
                fix=fix,
                source=source,
                check=check,
                symptom=symptom,
            ),
        )
        return check

    return register


def run_rules(evidence: Evidence) -> list[Finding]:
    """All findings, gravest first; within one severity causes before symptoms, each in the order of the model."""
    found = [finding for name in RULES for finding in RULES[name].check(evidence)]
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), RULES[f.rule].symptom))
