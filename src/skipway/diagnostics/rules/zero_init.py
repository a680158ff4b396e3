"""Rules ``zero-init`` and ``zero-twice``: branches that start at zero, by one factor or by two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, repeated, stream
from skipway.units.weights import branch_end, branch_weights, scale_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from torch import nn

    from skipway.diagnostics.finding import Finding

__all__ = ["zero_init", "zero_twice"]

_ZERO = "nn.init.zeros_(self.down.weight); nn.init.zeros_(self.down.bias)"


@dataclass(frozen=True, slots=True)
class _Start:
    """What of a unit's branch is zero: its end (a weight, or the gain of a norm), and the scales behind it."""

    member: Member
    ends: tuple[str, ...]
    scales: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All that is zero, from the merge back."""
        return (*self.scales, *self.ends)

    @property
    def twice(self) -> bool:
        """Whether two factors are zero: a scale and an end, or a norm's gain and the weight before it."""
        return len(self.names) > 1


@rule(
    "zero-init",
    severity="info",
    summary="The branches end in a zero: each unit starts as its shortcut. That is right.",
    explanation="The last weight of the branch, the gain of its last norm, or a learned scale behind it is zero."
    " At the start the unit gives what its shortcut gives, and the gradient comes to that one parameter first. Beside"
    " it nothing else may be zero: see zero-twice.",
    fix="nothing",
    source="Goyal et al. 2017, arXiv 1706.02677, section 5.1; Zhang et al. 2019, arXiv 1901.09321; Bachlechner et al."
    " 2020, arXiv 2003.04887",
    faulty=program(TOKENS, layers=_ZERO, unit="return x + self.branch(self.norm(x))", depth=4).replace(
        "; nn", "\n        nn"
    ),
    healthy=program(TOKENS, unit="return x + self.branch(self.norm(x))", depth=4),
)
def zero_init(evidence: Evidence) -> Iterator[Finding]:
    """Tell of units that one zero makes their own shortcut."""
    starts = [s for s in _starts(evidence) if not s.twice]
    if not starts:
        return
    members = [s.member for s in starts]
    yield RULES["zero-init"].finding(
        members[0].path,
        f"{starts[0].names[0]} is zero: the unit starts as its shortcut{repeated(members)}",
        {"units": len(members), "of": len(stream(evidence))},
    )


@rule(
    "zero-twice",
    severity="error",
    summary="A branch is zero by two factors at once: neither gets a gradient, and it never starts.",
    explanation="The scale behind a branch (a ReZero α, a LayerScale γ) or the gain of its last norm, and the last"
    " weight of the branch, are both zero. The gradient of each has the other as a factor. One backward run shows that"
    " nothing arrives. A scale of zero alone is healthy: see zero-init.",
    fix="let one of them start at another value: keep the scale at 0 and initialise the last weight as usual, or keep"
    " the weight at 0 and set the scale to 1",
    source="Bachlechner et al. 2020, arXiv 2003.04887 (majumderb/rezero); AlexHex7/Non-local_pytorch #1",
    faulty=program(
        TOKENS,
        layers="self.alpha = nn.Parameter(torch.zeros(()))\n        nn.init.zeros_(self.down.weight)\n        "
        "nn.init.zeros_(self.down.bias)",
        unit="return x + self.alpha * self.branch(x)",
        depth=4,
    ),
    healthy=program(
        TOKENS,
        layers="self.alpha = nn.Parameter(torch.zeros(()))",
        unit="return x + self.alpha * self.branch(x)",
        depth=4,
    ),
)
def zero_twice(evidence: Evidence) -> Iterator[Finding]:
    """Fire where both factors are zero and, measured, no gradient comes to the branch."""
    starts = [s for s in _starts(evidence) if s.twice]
    if not starts:
        return
    gradients = _gradients(evidence)
    if gradients is not None:
        starts = [s for s in starts if not _reached(s, evidence, gradients)]
    if not starts:
        return
    members = [s.member for s in starts]
    measured = "no gradient comes to the branch" if gradients is not None else "its gradient was not measured"
    yield RULES["zero-twice"].finding(
        members[0].path,
        f"{starts[0].names[0]} and {starts[0].names[1]} are both zero: {measured}{repeated(members)}",
        {"units": len(members)} | ({} if gradients is None else {"largest_gradient": 0.0}),
        severity="error" if gradients is not None else "warning",
    )


def _starts(evidence: Evidence) -> Iterator[_Start]:
    links, named = evidence.found.links, dict(evidence.model.named_parameters(remove_duplicate=False))
    for member in stream(evidence):
        ends: list[str] = []
        for at_norms in (True, False):
            for end in branch_end(member.described, links, norms=at_norms):
                own = [n for n in end.names if n in named]
                zero = bool(own) and all(_is_zero(named[n]) for n in own)  # a bias that is not zero is an output
                if zero and end.names[0] not in ends:
                    ends.append(end.names[0])
        scales = [n for n in scale_weights(member.described, links) if n in named and _is_zero(named[n])]
        if ends or scales:
            yield _Start(member, tuple(ends), tuple(scales))


def _is_zero(parameter: nn.Parameter) -> bool:
    return parameter.device.type != "meta" and parameter.numel() > 0 and not bool(parameter.detach().any())


def _gradients(evidence: Evidence) -> Mapping[str, torch.Tensor | None] | None:
    if evidence.lab is None:
        return None
    try:
        return evidence.lab.gradients("zero-twice")
    except Exception:  # noqa: BLE001  # a model or loss that cannot be run backward: then nothing was measured
        return None


def _reached(start: _Start, evidence: Evidence, gradients: Mapping[str, torch.Tensor | None]) -> bool:
    """Whether a gradient comes to a factor or a matrix of the branch: a bias alone makes it no more than a constant."""
    names = {*branch_weights(start.member.described, evidence.found.links), *start.names}
    found = [g for n in names if (g := gradients.get(n)) is not None and (g.dim() > 1 or n in start.names)]
    return any(bool(g.any()) for g in found)
