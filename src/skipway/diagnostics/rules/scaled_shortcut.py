"""Rule ``scaled-shortcut``: a factor on the path."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.look import Want
from skipway.diagnostics.profile import gradient_curve
from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, chains, has, repeated
from skipway.diagnostics.rules.gradient import SMALLEST_RATIO
from skipway.diagnostics.taps import norm
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from skipway.diagnostics.finding import Finding
    from skipway.form import Op

__all__ = ["scaled_shortcut"]

# What enters the stream reaches its end by the shortcuts halved, or doubled; a single mean of two does just that.
HALVED: Final = 0.499
DOUBLED: Final = 2.001
_UNSCALED: Final = 1e-3


@rule(
    "scaled-shortcut",
    severity="warning",
    summary="The shortcut is multiplied by a number other than 1: over L units by its L-th power.",
    explanation="A constant on the shortcut or on the sum (also the mean of stream and branch, and division by the"
    " square root of two), measured as the ratio of the shortcut's output to the stream and multiplied over the units"
    " of one stream: fires when less than half or more than double is left. A factor in front of a norm that stands"
    " behind the addition (DeepNorm) scales nothing, and learned factors are info unless the gradient vanishes.",
    fix="take the factor off the shortcut, return x + self.branch(x), and scale the branch instead",
    source="He et al. 2016, arXiv 1603.05027, eq. 5 and table 1",
    faulty=program(TOKENS, unit="return 0.5 * x + self.branch(self.norm(x))", depth=6, rest="nn.LayerNorm(16)"),
    healthy=program(TOKENS, unit="return x + 0.5 * self.branch(self.norm(x))", depth=6, rest="nn.LayerNorm(16)"),
    wants=lambda evidence: [
        Want(node=node, name="ratio", reduce=_ratio)
        for chain in chains(evidence)
        for member in chain
        for node in _scales(member, evidence)
    ],
    explains=("gradient-vanishing", "gradient-exploding", "stream-growth"),
)
def scaled_shortcut(evidence: Evidence) -> Iterator[Finding]:
    """Fire for each stream whose factors on the path multiply to less than a half or to more than two."""
    for chain in chains(evidence):
        scaled = [(m, _factor(m, evidence)) for m in chain if _is_scaled(m)]
        known = [(m, f) for m, f in scaled if f is not None and abs(f - 1) > _UNSCALED]
        if not known or (len(chain) > 1 and [m for m, _ in known] == chain[-1:] and not _before_the_sum(chain[-1])):
            continue  # a factor behind the last sum alone is a head's
        logs = [math.log(max(abs(f), 1e-300)) for _, f in known]
        total = sum(logs)
        if math.log(HALVED) < total < math.log(DOUBLED):
            continue
        members = [m for m, _ in known]
        learned = all(_is_learned(m) for m in members)
        factor, product = math.exp(total / len(known)), math.exp(max(min(total, 700.0), -700.0))
        measured = any(m.unit.numbers.shortcut_rms is not None for m in members)
        yield RULES["scaled-shortcut"].finding(
            members[0].path,
            f"the shortcut is multiplied by {factor:.4g}, over {len(members)} units by {product:.3g}"
            + ("" if measured else " (not measured)") + repeated(members),
            {"units": len(members), "factor_per_unit": factor, "factor_product": product},
            severity="info" if learned and not _vanishes(chain) else None,
        )  # fmt: skip


def _vanishes(chain: list[Member]) -> bool:
    """Whether the gradient is measured to fall on its way to the first unit: what a learned factor must not do."""
    curve = gradient_curve([m.unit for m in chain], ())
    return curve is not None and curve.ratio < SMALLEST_RATIO and curve.falls_back


def _is_scaled(member: Member) -> bool:
    """Whether a factor stands on the shortcut or behind the addition and no norm undoes it."""
    form = member.unit.form.canonical()
    on_sum = has(form.after, "scale")
    return (has(form.shortcut, "scale") or on_sum) and not has(form.after, "norm") and not has(form.shortcut, "norm")


def _before_the_sum(member: Member) -> bool:
    form = member.unit.form.canonical()
    return has(form.shortcut, "scale")


def _scales(member: Member, evidence: Evidence) -> list[int]:
    """Multiplications behind the addition, and those on the shortcut, whose factor the formula does not know."""
    if not _is_scaled(member):
        return []
    links = evidence.found.links
    nodes = (*member.described.shortcut_nodes, *member.described.after_nodes)
    return [
        i for i in nodes
        if links.nodes[i].op in ops.MULTIPLY and len(links.data_inputs(links.nodes[i])) == 1
        and not links.nodes[i].attrs.get("synthetic") and links.nodes[i].attrs.get("scalar") is None
    ]  # fmt: skip


def _factor(member: Member, evidence: Evidence) -> float | None:
    """λ of one unit; None where a factor is not a number and was not measured."""
    form = member.unit.form.canonical()
    found = 1.0
    unknown = 0
    for op in (*form.shortcut, *form.after):
        if op.kind == "scale":
            found *= float(op.detail) if isinstance(op.detail, float) else 1.0
            unknown += isinstance(op.detail, str)
    if not unknown:
        return found
    numbers = member.unit.numbers
    only_scales = all(op.kind == "scale" for op in form.shortcut) and not has(form.after, "scale")
    if only_scales and numbers.shortcut_rms is not None and numbers.stream_rms:
        return numbers.shortcut_rms / numbers.stream_rms
    ratios = [r for i in _scales(member, evidence) if (r := evidence.seen.get((i, "ratio"))) is not None]
    if unknown > len(ratios):
        return None
    return found * math.prod(ratios)


def _is_learned(member: Member) -> bool:
    """Whether a parameter makes the factor."""
    form = member.unit.form.canonical()
    scales: list[Op] = [op for op in (*form.shortcut, *form.after) if op.kind == "scale"]
    return any(isinstance(op.detail, str) and op.detail.startswith("learned") for op in scales)


def _ratio(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    signal = max(operands, key=lambda t: t.numel())
    return norm(result) / norm(signal).clamp_min(1e-30)
