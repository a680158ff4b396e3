"""Rule ``non-finite``: NaN or infinity on the stream or in the output, with the first operation that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.diagnostics.finding import Finding
from skipway.diagnostics.rules._rule import RULES, Evidence, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["non_finite"]


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
