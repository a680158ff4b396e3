"""Rule ``nested-unit``: a residual unit inside another one's branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._joins import times
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules.wrong_ancestor import jumping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["nested_unit"]

_FAULTY: Final = """
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))

    def forward(self, x):
        return x + self.branch(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(16, 16), Inner(), nn.Linear(16, 16)

    def forward(self, x):
        return x + self.last(self.inner(self.first(x)))


model = nn.Sequential(Block(), Block())
batch = torch.randn(4, 16)
"""


@rule(
    "nested-unit",
    severity="info",
    summary="A residual unit lies inside the branch of another one.",
    explanation="Shown, not condemned: residual in residual is a design. Where the inner unit starts from the outer"
    " unit's own x and both join in one module, the rule wrong-ancestor looks instead.",
    fix="nothing, if it is meant",
    source="graph; e.g. RRDB, Wang et al. 2018, arXiv 1809.00219",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("x + self.last(", "self.last("),
)
def nested_unit(evidence: Evidence) -> Iterator[Finding]:
    """Report units inside branches, once for the model."""
    outer_of: dict[int, int] = {}
    at_fault = {outer for outer, _ in jumping(evidence)}
    for k, (unit, described) in enumerate(zip(evidence.units, evidence.described, strict=True)):
        if unit.kind in ("unit", "merge") and k not in at_fault:
            for join in described.candidate.inner:
                outer_of[join] = k  # the innermost comes last or joins first
    inner = [k for k, d in enumerate(evidence.described) if d.candidate.join in outer_of]
    if not inner:
        return
    first, outer = inner[0], outer_of[evidence.described[inner[0]].candidate.join]
    yield RULES["nested-unit"].finding(
        evidence.units[first].path,
        f"this unit lies inside the branch of {evidence.units[outer].path}{times(len(inner))}",
        {"inner_units": len(inner), "outer_unit": evidence.units[outer].path},
    )
