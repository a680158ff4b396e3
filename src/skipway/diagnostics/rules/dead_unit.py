"""Rule ``dead-unit``: a branch that gives nothing, or learns nothing, among others that do."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final, Literal

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, has, repeated, stream
from skipway.units.links import members
from skipway.units.weights import branch_end, branch_weights, scale_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding
    from skipway.units.describe import Described

__all__ = ["dead_unit"]

_DEAD: Final = 1e-5  # of the median share of the others: far below what training leaves of a useful branch
_SAME: Final = 1e-6  # two single precision norms of one tensor
_FEWEST: Final = 4
_UNIT: Final = "return x + self.branch(self.norm(x))"


@rule(
    "dead-unit",
    severity="warning",
    summary="A unit's branch adds nothing to the stream, or learns nothing, while its siblings do.",
    explanation="‖F‖/‖h‖ of one unit is under 1/100,000 of its siblings' median; or its branch is detached; or the"
    " gradient passes it by, as behind activations that are all shut, and a backward run shows that none comes to its"
    " matrices. So are named branches that are all zero by something that does not train. Branches that start at zero"
    " by design (a zero weight or scale that trains: zero-init, ReZero, LayerScale at one small value everywhere) are"
    " healthy, and so is one whose drop-path was drawn to zero.",
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
    yield from _passed_by([m for m in members if m not in dead], len(members), evidence)
    if not median:
        yield from _held_at_zero(dead, len(members), evidence)
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
    cut = [
        Member(evidence.units[k], evidence.described[k])
        for k in evidence.main
        if k in evidence.cut and _means_to_train(evidence.described[k], evidence)
    ]
    if cut:
        yield RULES["dead-unit"].finding(
            cut[0].path,
            f"no gradient comes to the branch, whose weights are to train: it is detached, or runs under"
            f" no_grad{repeated(cut)}",
            {"units": len(cut), "siblings": len(evidence.main)},
            fix="take the branch out of torch.no_grad() and let nothing detach what it gives",
        )


def _means_to_train(described: Described, evidence: Evidence) -> bool:
    """Whether a weight of a branch is to train: all parameters that it is made of are.

    A frozen copy that follows another net (momentum encoders) is made of its own and of what it follows.
    """
    links, named = evidence.found.links, evidence.parameters
    names = links.graph.parameter_names
    for i in described.candidate.region:
        for j in links.nodes[i].inputs:
            node = links.nodes[j]
            made_of = [] if node.data else [named[names[n]] for n in members(node.params) if names[n] in named]
            if made_of and all(p.requires_grad for p in made_of):
                return True
    return False


def _passed_by(members: Sequence[Member], siblings: int, evidence: Evidence) -> Iterator[Finding]:
    """Branches that add something, and whose matrices no gradient comes to: shut activations leave a constant."""
    suspected = [m for m in _attached(members, evidence) if _adds_no_gradient(m) and not _starts_at_zero(m, evidence)]
    shut = _unreached(suspected, evidence) if 2 * len(suspected) < siblings else []
    if shut:
        yield RULES["dead-unit"].finding(
            shut[0].path,
            f"no gradient comes to the matrices of the branch: its activations are shut for every input of the batch"
            f"{repeated(shut)}",
            {"units": len(shut), "siblings": siblings, "largest_gradient": 0.0},
            fix="look at the biases and norms before its activations: a shift below all inputs shuts a ReLU for good;"
            " draw the unit's weights anew, at a lower learning rate",
        )


def _held_at_zero(members: Sequence[Member], siblings: int, evidence: Evidence) -> Iterator[Finding]:
    """Where most branches give zero: those that no parameter makes zero, and that no gradient comes to."""
    asked = [m for m in _attached(members, evidence) if m.unit.numbers.grad_stream]
    # A zero-initialised norm before a squeeze-and-excitation gate is reached: the unit starts by it.
    held = _unreached(asked, evidence, what="parameters")
    if held:
        yield RULES["dead-unit"].finding(
            held[0].path,
            f"the branch is zero, no parameter makes it so, and no gradient comes to its parameters: it never starts"
            f"{repeated(held)}",
            {"units": len(held), "siblings": siblings, "share": 0.0, "largest_gradient": 0.0},
            fix="a scale that starts at zero must train: self.alpha = nn.Parameter(torch.zeros(()))",
        )


def _attached(members: Sequence[Member], evidence: Evidence) -> list[Member]:
    """All but those whose branch is detached, of which `_without_gradient` tells."""
    detached = {evidence.units[k].path for k in evidence.cut}
    return [m for m in members if m.path not in detached]


def _unreached(
    members: Sequence[Member], evidence: Evidence, *, what: Literal["matrices", "parameters"] = "matrices"
) -> list[Member]:
    """Units to whose branches' matrices, or to any of their parameters, no gradient comes, as a run backward shows."""
    if evidence.lab is None or not members:
        return []
    try:
        gradients = evidence.lab.gradients("dead-unit")
    except Exception:  # noqa: BLE001  # a model or loss that cannot be run backward: then nothing was measured
        return []
    found = []
    for member in members:
        names = [n for n in branch_weights(member.described, evidence.found.links) if n in gradients]
        if what == "matrices":
            names = [n for n in names if evidence.model.get_parameter(n).dim() > 1]
        reached = [gradients[n] for n in names]
        if reached and not any(g is not None and bool(g.any()) for g in reached):
            found.append(member)
    return found


def _adds_no_gradient(member: Member) -> bool:
    """Whether the gradient before an identity shortcut is that behind it: the branch gives nothing of it back."""
    form, numbers = member.unit.form, member.unit.numbers
    before, behind = numbers.grad_stream, numbers.grad_branch
    if form.shortcut or form.after or form.parallel or has(form.branch[-1:], "scale") or not before or not behind:
        return False
    return abs(before - behind) <= _SAME * behind


def _share(member: Member) -> float | None:
    numbers = member.unit.numbers
    if numbers.branch_rms is None or not numbers.shortcut_rms:
        return None
    return numbers.branch_rms / numbers.shortcut_rms


def _drops(member: Member) -> bool:
    return any(has(branch, "drop_path") for branch in (member.unit.form.branch, *member.unit.form.parallel))


def _starts_at_zero(member: Member, evidence: Evidence) -> bool:
    """Whether the branch is zero or small by a parameter that starts so: exactly zero, or one value in all channels."""
    named = evidence.parameters
    links = evidence.found.links
    ends = [end.names[0] for norms in (True, False) for end in branch_end(member.described, links, norms=norms)]
    found = [named[n] for n in (*ends, *scale_weights(member.described, links)) if n in named]
    scales = [named[n] for n in scale_weights(member.described, links) if n in named]
    untrained = any(p.numel() > 1 and bool((p == p.flatten()[0]).all()) for p in scales)  # a LayerScale as it starts
    return untrained or any(p.requires_grad and not bool(p.detach().any()) for p in found)
