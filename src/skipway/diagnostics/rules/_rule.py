"""What a rule is and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from skipway.diagnostics.finding import SEVERITIES, Finding, Severity
from skipway.registry import Registry
from skipway.trace.attributes import named_modules

if TYPE_CHECKING:
    import torch
    from torch import nn

    from skipway.diagnostics.lab import Lab
    from skipway.diagnostics.layer import Layer
    from skipway.diagnostics.look import Want
    from skipway.trace.graph import Graph
    from skipway.trace.record import Trace
    from skipway.units.describe import Described
    from skipway.units.find import Found
    from skipway.units.unit import Unit

__all__ = ["NEEDS", "RULES", "Check", "Evidence", "Need", "Rule", "Wants", "collect_wants", "rule", "run_rules"]

_Known = TypeVar("_Known")
Need = Literal["signal", "values", "runs", "optimizer"]
NEEDS: Final[Mapping[Need, str]] = {
    "signal": "the measured signal",
    "values": "the values of parameters",
    "runs": "further runs of the model",
    "optimizer": "the optimizer",
}
"""What a rule cannot do without, in words; the structure is always there."""


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
        values: whether the parameters' values count (not where only the structure is asked for, nor on the meta
            device).
        described: for each unit the nodes behind its formula; parallel to `units`.
        found: relations of the graph (`found.links`), routes, all candidates and rejected joins.
        model: the inspected module: read only.
        optimizer: the optimizer that trains it, if one was given.
        lab: makes further runs of the model; None where they are not paid for (profile fast, structure only).
        seen: what `wants` asked for, by node and name; a number that could not be read is missing.
        trace: the recorded run with what the model raised, if it did: the graph then ends at `trace.raised`.
        backward_error: what the backward run raised, if it did.
        autocast: dtype of the autocast under which the model runs, None without one.
        gradient_finite: whether every measured gradient along the stream was finite.
        constant: positions of the units whose x was seen to need no gradient.
        cut: positions of the units whose shortcut needs a gradient and whose branch does not.
        recounted: BatchNorms (by path) that counted batches during the backward run, and how many.
        detached: whether the output is floating and needs no gradient.
        kept: what `once` keeps.
    """

    units: Sequence[Unit]
    graph: Graph
    layers: Sequence[Layer] = ()
    scopes: Sequence[Sequence[int]] = ()
    finite: bool = True
    first_non_finite: dict[str, str] = field(default_factory=dict)
    measured: bool = False
    values: bool = True
    described: Sequence[Described] = ()
    found: Found
    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    lab: Lab | None = None
    seen: Mapping[tuple[int, str], float] = field(default_factory=dict)
    trace: Trace
    backward_error: str = ""
    autocast: torch.dtype | None = None
    gradient_finite: bool = True
    constant: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    recounted: Mapping[str, int] = field(default_factory=dict)
    detached: bool = False
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> list[int]:
        """Positions of the units on the main stream, in order of execution."""
        return [k for k, u in enumerate(self.units) if u.level == 0 and u.kind == "unit"]

    @property
    def modules(self) -> Sequence[tuple[str, nn.Module]]:
        """The model's modules in order, each once, under its first name: those that the recorder found, if it ran."""
        return self.trace.modules or self.once("modules", lambda: named_modules(self.model))

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The model's parameters by every name that they have."""
        return self.once("parameters", lambda: dict(self.model.named_parameters(remove_duplicate=False)))

    @property
    def trained(self) -> Mapping[str, nn.Parameter]:
        """The parameters that need a gradient, each once, by the name that the recorded run has for it."""
        named = self.parameters
        recorded = self.graph.parameter_names
        return self.once("trained", lambda: {n: named[n] for n in recorded if n in named and named[n].requires_grad})

    def once(self, name: str, work: Callable[[], _Known]) -> _Known:
        """What `work` gives, worked out once for all rules that ask for it by this name."""
        if name not in self.kept:
            self.kept[name] = work()
        known: _Known = self.kept[name]
        return known

    def has(self, need: Need) -> bool:
        """Whether what a rule needs is there."""
        return {
            "signal": self.measured,
            "values": self.values,
            "runs": self.lab is not None,
            "optimizer": self.optimizer is not None,
        }[need]


Check = Callable[[Evidence], Iterator[Finding]]
Wants = Callable[[Evidence], Iterable["Want"]]


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
        faulty, healthy: two tiny programs that define ``model`` and ``batch`` (and ``loss``, ``optimizer`` where the
            rule looks at them), the second differing only in the fault.
        check: yields the findings.
        wants: yields what is to be read of single operations in one more forward run, which all rules share; asked for
            only where the structure makes a rule suspicious. `Evidence.seen` holds the answers.
        needs: what the rule cannot do without: it is not asked where that is missing, and the report says so.
        explains: ids of symptoms that a finding of this rule explains; they are folded under it.
        symptom: whether it shows an effect, whose cause other rules may name; symptoms come after causes.
    """

    id: str
    severity: Severity
    summary: str
    explanation: str
    fix: str
    source: str
    faulty: str
    healthy: str
    check: Check
    wants: Wants | None = None
    needs: tuple[Need, ...] = ()
    explains: tuple[str, ...] = ()
    symptom: bool = False

    def finding(
        self,
        path: str,
        message: str,
        evidence: Mapping[str, float | int | str],
        *,
        severity: Severity | None = None,
        fix: str | None = None,
    ) -> Finding:
        """A finding of this rule; severity and fix are the rule's own unless they are given."""
        return Finding(
            rule=self.id,
            severity=severity or self.severity,
            path=path,
            evidence=evidence,
            fix=fix or self.fix,
            source=self.source,
            message=message,
        )


RULES: Registry[Rule] = Registry("rule", "skipway.diagnostics.rules")


def rule(  # noqa: PLR0913  # one for each field of a rule
    id: str,  # noqa: A002  # a rule has an id
    *,
    severity: Severity,
    summary: str,
    explanation: str,
    fix: str,
    source: str,
    faulty: str,
    healthy: str,
    wants: Wants | None = None,
    needs: tuple[Need, ...] = (),
    explains: tuple[str, ...] = (),
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
                faulty=faulty,
                healthy=healthy,
                check=check,
                wants=wants,
                needs=needs,
                explains=explains,
                symptom=symptom,
            ),
        )
        return check

    return register


def collect_wants(evidence: Evidence) -> list[Want]:
    """What all rules want to see of single operations."""
    return [want for name in RULES if (asks := RULES[name].wants) is not None for want in asks(evidence)]


def run_rules(evidence: Evidence) -> tuple[list[Finding], list[str]]:
    """All findings, and what was not looked at.

    The gravest come first; within one severity causes before symptoms, each in the order of the model. A symptom that a
    finding explains comes right behind it.
    """
    found: list[Finding] = []
    missing: dict[Need, list[str]] = {}
    for name in RULES:
        lacking = [need for need in RULES[name].needs if not evidence.has(need)]
        if lacking:
            missing.setdefault(lacking[0], []).append(name)
        else:
            found += RULES[name].check(evidence)
    found.sort(key=lambda f: (SEVERITIES.index(f.severity), RULES[f.rule].symptom))
    notes = [f"not looked at without {NEEDS[need]}: {', '.join(names)}" for need, names in missing.items()]
    return _folded(found), notes


def _folded(found: list[Finding]) -> list[Finding]:
    """Every symptom that another finding explains, right behind the first finding that does."""
    explained: dict[str, str] = {}
    for cause in dict.fromkeys(f.rule for f in found if f.severity != "info"):
        if cause not in explained:  # a chain of causes is not followed
            for symptom in RULES[cause].explains:
                if symptom != cause:
                    explained.setdefault(symptom, cause)
    last = {f.rule: k for k, f in enumerate(found)}
    ordered: list[Finding] = []
    for k, finding in enumerate(found):
        if finding.rule not in explained:
            ordered.append(finding)
            if k == last[finding.rule]:
                ordered += [replace(f, cause=finding.rule) for f in found if explained.get(f.rule) == finding.rule]
    return ordered
