"""Rule ``non-finite``: NaN or infinity on the stream or in the output, with the first operation that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.finding import Finding
from skipway.diagnostics.rules._rule import RULES, Evidence, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["non_finite"]

_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + self.linear(x / 0.0)


model = nn.Sequential(Block(), Block())
batch = torch.randn(4, 16)
"""


@rule(
    "non-finite",
    severity="error",
    summary="NaN or infinity reaches the stream or the output.",
    explanation="When a measured number or an output is not finite, the model is run once more and every operation is"
    " watched: the first whose operands are finite and whose result is not is named, with its module. Infinities that"
    " are written on purpose (masks) are left out unless they reach the stream.",
    fix="by cause: an overflow wants a smaller scale or a wider dtype, a division or logarithm an epsilon, a "
    "row that is"
    " masked everywhere a column that is not",
    source="measured",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("x / 0.0", "x / 2.0"),
    needs=("signal",),
)
def non_finite(evidence: Evidence) -> Iterator[Finding]:
    """Fire when anything measured was not finite."""
    if evidence.finite:
        return
    first = evidence.first_non_finite
    known = RULES["non-finite"]
    made = f"first made by {first['operation']}" if first else "by an operation that was not seen"
    yield Finding(
        rule="non-finite",
        severity="error",
        path=first.get("path", ""),
        message=f"NaN or infinity on the stream, {made}",
        evidence=first,
        fix=known.fix,
        source=known.source,
    )
