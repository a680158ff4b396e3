"""Rule ``missing-shortcut``: a unit among equals lacks its add, or a deep stack has none and its gradient decays."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.finding import Finding
from skipway.diagnostics.profile import gradient_curve
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["missing_shortcut"]

_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.last = last
        self.branch = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, x):
        y = self.branch(x)
        return y if self.last else x + y


model = nn.Sequential(*[Block(last=k == 5) for k in range(6)])
batch = torch.randn(4, 16)
"""
_FEWEST_EQUALS: Final = 4
_SHARE_WITH_SHORTCUT: Final = 0.75
_DEEP: Final = 20
_DECAY: Final = 1e-2
_WORK: Final = ops.WORKING


@rule(
    "missing-shortcut",
    severity="warning",
    summary="A unit among equals lacks its shortcut, or a deep stack has none and its gradient decays.",
    explanation="Modules of one class that keep their input's shape and mostly hold a residual unit: one that "
    "holds none is"
    " named. A stack of more than 20 weighted layers without any unit is named only if the measured gradient falls to"
    " under 1/100 on the way to its first layer.",
    fix="add the module's input to its output: return x + self.branch(x)",
    source="He et al. 2015, arXiv 1512.03385, fig. 1 and 6",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("y if self.last else x + y", "x + y"),
    explains=("gradient-vanishing",),
)
def missing_shortcut(evidence: Evidence) -> Iterator[Finding]:
    """Fire for the odd one out among equal modules, and for deep stacks without units whose gradient decays."""
    known = RULES["missing-shortcut"]
    yield from _odd_one_out(evidence, known.fix, known.source)
    curve = gradient_curve((), evidence.layers)
    if evidence.units or curve is None or len(curve.values) <= _DEEP or curve.ratio >= _DECAY:
        return
    yield Finding(
        rule="missing-shortcut",
        severity="warning",
        path="",
        message=f"{len(curve.values)} weighted layers in a row without a shortcut, and the gradient decays",
        evidence={"layers": len(curve.values), "first_over_last": curve.ratio},
        fix=known.fix,
        source=known.source,
    )


def _odd_one_out(evidence: Evidence, fix: str, source: str) -> Iterator[Finding]:
    graph = evidence.graph
    holding = {call for scope in evidence.scopes for call in scope}
    work = [0] * len(graph.calls)
    for node in graph.nodes:
        if node.op in _WORK:
            work[node.call] += 1
    for call in reversed(graph.calls[1:]):  # a call comes after the one around it
        work[call.parent] += work[call.id]
    by_class: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for one in graph.calls[1:]:
        if one.input_shape and one.input_shape == one.output_shape and work[one.id] > 1:
            by_class[one.cls, work[one.id]].append(one.id)
    for (cls, _), calls in by_class.items():
        lacking = [c for c in calls if c not in holding]
        if len(calls) < _FEWEST_EQUALS or not lacking or len(lacking) > (1 - _SHARE_WITH_SHORTCUT) * len(calls):
            continue
        for c in lacking:
            yield Finding(
                rule="missing-shortcut",
                severity="warning",
                path=graph.calls[c].path,
                message=f"this {cls} has no shortcut, unlike {len(calls) - len(lacking)} others of its kind",
                evidence={"equals": len(calls), "without_shortcut": len(lacking)},
                fix=fix,
                source=source,
            )
