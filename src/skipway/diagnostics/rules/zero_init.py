"""Rules ``zero-init`` and ``zero-twice``: branches that start at zero, by one factor or by two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, repeated, stream
from skipway.trace import ops
from skipway.units.links import members as elements
from skipway.units.weights import branch_end, branch_weights, parameter_names, scale_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from torch import nn

    from skipway.diagnostics.finding import Finding
    from skipway.units.describe import Described
    from skipway.units.links import Links

__all__ = ["zero_init", "zero_twice"]

_WITH_WEIGHTS: Final = ops.WORKING | ops.BATCHED_MATMUL | ops.NORM
_ZERO = "nn.init.zeros_(self.down.weight); nn.init.zeros_(self.down.bias)"
# Weight normalisation: the length, which is zero, and the direction, which need not be.
_ROUNDING: Final = 1e-6
_LENGTHS: Final = {"weight_v": "weight_g", "original1": "original0"}


@dataclass(frozen=True, slots=True)
class _Start:
    """What of a branch is zero: its end (a weight, or the gain of a norm), the scales behind it, and all before."""

    member: Member
    ends: tuple[str, ...]
    scales: tuple[str, ...]
    before: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All that is zero, from the merge back."""
        return (*self.scales, *self.ends, *self.before)

    @property
    def shut(self) -> bool:
        """Whether the branch gives zero: by its end or by a scale behind it."""
        return bool(self.ends or self.scales)

    @property
    def twice(self) -> bool:
        """Whether two factors at the end are zero: a scale and a weight, or a norm's gain and the weight before it."""
        return len(self.scales) + len(self.ends) > 1


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
    needs=("values",),
)
def zero_init(evidence: Evidence) -> Iterator[Finding]:
    """Tell of units that one zero makes their own shortcut."""
    starts = [s for s in _starts(evidence) if _gives_zero(s.member)]
    suspected = [s for s in starts if s.shut and s.before and not s.twice]
    shown = _never_started(suspected, evidence, "zero-init")[0] if suspected else []
    faulty = {s.member.path for s in (*shown, *(s for s in starts if s.twice))}
    open_ = {s.member.path for s in starts if not s.shut}
    by_unit = {s.member.path: s for s in reversed(starts) if s.member.path not in faulty | open_}
    starts = list(reversed(by_unit.values()))
    if not starts:
        return
    members = [s.member for s in starts]
    yield RULES["zero-init"].finding(
        members[0].path,
        f"{starts[0].names[0]} is zero: the unit starts as its shortcut{repeated(members)}",
        {"units": len(members), "of": len(stream(evidence))},
    )


def _gives_zero(member: Member) -> bool:
    """Whether the whole branch was seen to be zero: beside a low-rank way that starts at zero lies the ordinary one."""
    numbers = member.unit.numbers
    return not numbers.branch_rms or numbers.branch_rms <= _ROUNDING * (numbers.shortcut_rms or 0.0)


@rule(
    "zero-twice",
    severity="error",
    summary="A branch is zero by two factors at once: neither gets a gradient, and it never starts.",
    explanation="Two factors in a row of one branch are zero: the scale behind it (a ReZero α, a LayerScale γ), the"
    " gain of a norm, a weight. The gradient of each has the other as a factor. One backward run shows that"
    " nothing arrives. A scale of zero alone is healthy, and so are zeros on ways beside each other: see zero-init.",
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
    needs=("values",),
)
def zero_twice(evidence: Evidence) -> Iterator[Finding]:
    """Fire where both factors are zero and, measured, no gradient comes to the branch."""
    suspected = [s for s in _starts(evidence) if s.twice or (s.shut and s.before)]
    starts, measured = _never_started(suspected, evidence, "zero-twice") if suspected else ([], False)
    if not starts:
        return
    members = [s.member for s in starts]
    shown = "no gradient comes to the branch" if measured else "its gradient was not measured"
    yield RULES["zero-twice"].finding(
        members[0].path,
        f"{starts[0].names[0]} and {starts[0].names[1]} are both zero: {shown}{repeated(members)}",
        {"units": len(members)} | ({"largest_gradient": 0.0} if measured else {}),
        severity="error" if measured else "warning",
    )


def _never_started(starts: list[_Start], evidence: Evidence, rule_id: str) -> tuple[list[_Start], bool]:
    """Those of the branches that no gradient comes to, and whether that was measured.

    Where it could not be, those with two zeros at their end: a zero further up may lie on one way of several.
    """
    gradients = _gradients(evidence, rule_id)
    if gradients is None:
        return [s for s in starts if s.twice], False
    return [s for s in starts if not _reached(s, evidence, gradients)], True


def _starts(evidence: Evidence) -> list[_Start]:
    return evidence.once("starts of branches", lambda: list(_every_start(evidence)))


def _every_start(evidence: Evidence) -> Iterator[_Start]:
    """For every branch of every unit of the main stream what of it is zero."""
    links, named = evidence.found.links, evidence.parameters
    for member in stream(evidence):
        for tail in member.described.tails:
            yield _start(member, replace(member.described, tails=[tail]), links, named)


def _start(member: Member, one: Described, links: Links, named: Mapping[str, nn.Parameter]) -> _Start:
    ends: dict[str, None] = {}
    for at_norms in (True, False):
        for end in branch_end(one, links, norms=at_norms, batched=True):
            if _all_zero(end.names, named):
                ends[end.names[0]] = None
    scales = [n for n in scale_weights(one, links) if n in named and _is_zero(named[n])]
    before = []
    for i in elements(links.between(one.candidate.base, one.tails[0].output)) if ends or scales else ():
        if links.nodes[i].op in _WITH_WEIGHTS:
            names = parameter_names([i], links)
            if _all_zero(names, named) and not set(names) & set(ends):
                before.append(names[0])
    return _Start(member, tuple(ends), tuple(scales), tuple(before))


def _all_zero(names: Sequence[str], named: Mapping[str, nn.Parameter]) -> bool:
    """Whether an operation gives zero by its parameters: a bias that is not zero is an output."""
    own = [n for n in names if n in named and not (_length(n) in named and _length(n) in names)]
    return bool(own) and all(_is_zero(named[n]) for n in own)


def _length(name: str) -> str:
    path, _, last = name.rpartition(".")
    return f"{path}.{_LENGTHS[last]}" if last in _LENGTHS else ""


def _is_zero(parameter: nn.Parameter) -> bool:
    if parameter.device.type == "meta" or not parameter.numel():
        return False
    values = parameter.detach()
    # The first entry tells of nearly all weights that they are not.
    return not bool(values[(0,) * values.dim()]) and not bool(values.any())


def _gradients(evidence: Evidence, rule_id: str) -> Mapping[str, torch.Tensor | None] | None:
    if evidence.lab is None:
        return None
    try:
        return evidence.lab.gradients(rule_id)
    except Exception:  # noqa: BLE001  # a model or loss that cannot be run backward: then nothing was measured
        return None


def _reached(start: _Start, evidence: Evidence, gradients: Mapping[str, torch.Tensor | None]) -> bool:
    """Whether a gradient comes to a factor or a matrix of the branch: a bias alone makes it no more than a constant."""
    names = {*branch_weights(start.member.described, evidence.found.links), *start.names}
    found = [g for n in names if (g := gradients.get(n)) is not None and (g.dim() > 1 or n in start.names)]
    return any(bool(g.any()) for g in found)
