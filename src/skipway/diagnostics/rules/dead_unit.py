"""Rule ``dead-unit``: a branch that gives nothing, or learns nothing, among others that do."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, has, repeated, stream
from skipway.units.weights import branch_end, branch_weights, scale_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["dead_unit"]

_DEAD: Final = 1e-5  # of the median share of the others: far below what training leaves of a useful branch
_FEWEST: Final = 4
_UNIT: Final = "return x + self.branch(self.norm(x))"


@rule(
    "dead-unit",
    severity="warning",
    summary="A unit's branch adds nothing to the stream, or learns nothing, while its siblings do.",
    explanation="‖F‖/‖h‖ of one unit is under 1/100,000 of its siblings' median. Branches that start at zero by design"
    " (a zero weight or scale that trains: zero-init, ReZero, LayerScale at one small value everywhere) are healthy,"
    " and so is one whose drop-path was drawn to zero.",
    fix="look at its gate, its weight decay and its last activations; remove the unit if nothing is lost by its lesion"
    " (skipway lesion)",
    source="majumderb/rezero #16; huggingface/transformers #30633",
    faulty=program(TOKENS, unit=_UNIT, depth=6).replace(
        "batch =", "with torch.no_grad():\n    model[3].down.weight.mul_(1e-9), model[3].down.bias.zero_()\nbatch ="
    ),
    healthy=program(TOKENS, unit=_UNIT, depth=6),
    needs=("signal",),
)
def dead_unit(evidence: Evidence) -> Iterator[Finding]:
    """Fire for branches that are silent among ones that are not."""
    yield from _without_gradient(evidence)
    members = [m for m in stream(evidence) if _share(m) is not None and not _drops(m)]
    if len(members) < _FEWEST:
        return
    shares = [s for m in members if (s := _share(m)) is not None]
    median = statistics.median(shares)
    dead = [m for m in members if (_share(m) or 0.0) <= _DEAD * median and not _starts_at_zero(m, evidence)]
    if not median or not dead or 2 * len(dead) >= len(members):
        return
    share = _share(dead[0]) or 0.0
    yield RULES["dead-unit"].finding(
        dead[0].path,
        f"the branch is {share:.2g} of its shortcut, those of its siblings {median:.2g}{repeated(dead)}",
        {"share": share, "median_share": median, "units": len(dead), "siblings": len(members)},
    )


def _without_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Branches that no gradient can come to although their weights train."""
    named = dict(evidence.model.named_parameters(remove_duplicate=False))
    cut = []
    for k in evidence.main:
        weights = branch_weights(evidence.described[k], evidence.found.links)
        if k in evidence.cut and any(named[n].requires_grad for n in weights if n in named):
            cut.append(Member(evidence.units[k], evidence.described[k]))
    if cut:
        yield RULES["dead-unit"].finding(
            cut[0].path,
            f"no gradient comes to the branch, whose weights are to train: it is detached, or runs under"
            f" no_grad{repeated(cut)}",
            {"units": len(cut), "siblings": len(evidence.main)},
            fix="take the branch out of torch.no_grad() and let nothing detach what it gives",
        )


def _share(member: Member) -> float | None:
    numbers = member.unit.numbers
    if numbers.branch_rms is None or not numbers.shortcut_rms:
        return None
    return numbers.branch_rms / numbers.shortcut_rms


def _drops(member: Member) -> bool:
    return any(has(branch, "drop_path") for branch in (member.unit.form.branch, *member.unit.form.parallel))


def _starts_at_zero(member: Member, evidence: Evidence) -> bool:
    """Whether the branch is zero or small by a parameter that starts so: exactly zero, or one value in all channels."""
    named = dict(evidence.model.named_parameters(remove_duplicate=False))
    links = evidence.found.links
    ends = [end.names[0] for norms in (True, False) for end in branch_end(member.described, links, norms=norms)]
    found = [named[n] for n in (*ends, *scale_weights(member.described, links)) if n in named]
    scales = [named[n] for n in scale_weights(member.described, links) if n in named]
    untrained = any(p.numel() > 1 and bool((p == p.flatten()[0]).all()) for p in scales)  # a LayerScale as it starts
    return untrained or any(p.requires_grad and not bool(p.detach().any()) for p in found)
