"""Rule ``wrong-ancestor``: a shortcut that starts from the stream before an earlier unit and jumps over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._joins import called, holder, times, weights_between
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.units.weights import branch_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["jumping", "wrong_ancestor"]

_FAULTY: Final = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))
        self.mlp = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        h = x + self.mix(x)
        return x + self.mlp(h)


model = nn.Sequential(Layer(), Layer())
batch = torch.randn(4, 16)
"""


@rule(
    "wrong-ancestor",
    severity="error",
    summary="A shortcut takes the block's first input and so jumps over a unit.",
    explanation="Two joins of one module call start from the same x, and the second one's branch computes, with weights"
    " of its own, from the result of the first: y = x + G(x + F(x)), where y = h + G(h) with h = x + F(x) is meant. F"
    " then reaches the stream through G only. Where weights lie between the two starts, or the inner unit is a module"
    " of its own, residual in residual is meant (nested-unit).",
    fix="take the shortcut from the stream behind the first unit: h = x + F(x); y = h + G(h)",
    source="transformer-tensorflow2.0 issue 14",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("x + self.mlp(h)", "h + self.mlp(h)"),
)
def wrong_ancestor(evidence: Evidence) -> Iterator[Finding]:
    """Fire for units that jump over another of the same module call."""
    pairs = jumping(evidence)
    if not pairs:
        return
    outer, inner = pairs[0]
    units = evidence.units
    numbers = units[inner].numbers
    lost = None
    if numbers.branch_rms is not None and numbers.shortcut_rms:
        lost = numbers.branch_rms / numbers.shortcut_rms
    shown = lost is not None and all(
        units[k].proof_error is not None and units[k].numbers.branch_rms is not None for k in pairs[0]
    )
    seen: dict[str, float | int | str] = {
        "units": len(pairs), "jumped_unit": units[inner].path, "equation": units[outer].form.equation(),
    }  # fmt: skip
    if lost is not None:
        seen["branch_over_stream_that_is_jumped"] = lost
    where = evidence.graph.calls[holder(evidence.described[outer].candidate, evidence.found.links)].path
    yield RULES["wrong-ancestor"].finding(
        units[outer].path,
        f"in {called(where)} the shortcut of {units[outer].path} starts before {units[inner].path}, which its branch"
        f" reads: it jumps over that unit{times(len(pairs))}" + ("" if shown else " (not measured)"),
        seen,
        severity="error" if shown else "warning",
        fix=f"in {called(where)} add the result of {units[inner].path}, not its input, to the branch of"
        f" {units[outer].path}: h = x + F(x); y = h + G(h)",
    )


def jumping(evidence: Evidence) -> list[tuple[int, int]]:
    """Positions of units that jump over another, each with the last one that it jumps over."""
    links = evidence.found.links
    by_join = {d.candidate.join: k for k, d in enumerate(evidence.described)}
    pairs = []
    for k, (unit, described) in enumerate(zip(evidence.units, evidence.described, strict=True)):
        candidate = described.candidate
        if unit.kind != "unit" or not candidate.inner or candidate.pair:
            continue
        call = holder(described.candidate, links)
        starts = {candidate.base}
        jumped = []
        for join in sorted(candidate.inner):
            inner = by_join.get(join)
            if inner is None or evidence.units[inner].kind != "unit":
                continue
            other = evidence.described[inner]
            if other.candidate.base not in starts or holder(other.candidate, links) != call:
                continue
            # An integrator that calls one function twice (midpoint, Runge-Kutta) is no unit behind another.
            own = set(branch_weights(described, links)) - set(branch_weights(other, links))
            if own and any(weights_between(other.end, t.node, links) for t in candidate.branches):
                jumped.append(inner)
                starts.add(links.strip(other.end))
        if jumped:
            pairs.append((k, jumped[-1]))
    return pairs
