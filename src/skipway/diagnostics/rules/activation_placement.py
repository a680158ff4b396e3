"""Rules ``relu-after-add-deep`` and ``nonnegative-branch``: rectifiers where the stream has to pass them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._programs import CONV, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, Passed, chains, has, module_of, passed, repeated, stream
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from skipway.diagnostics.finding import Finding

__all__ = ["nonnegative_branch", "relu_after_add_deep"]

# ResNet-152 (50 units) loses 0.2 points to its pre-activation twin, ResNet-200 (66 units) 1.1 (arXiv 1603.05027,
# table 5): no net of up to 60 units is named.
DEEP: Final = 60
# Every entry of the stream is cut to zero once on its way, on the average. Without it (branches that start at zero)
# the rectifier does nothing yet.
CUTS: Final = 1.0
_RECTIFIERS: Final = frozenset({"relu", "relu6", "clamp", "hardtanh"})
_REACHES_ZERO: Final = frozenset({"relu", "relu6", "threshold", "clamp_min", "hardtanh"})
_POSITIVE: Final = _REACHES_ZERO | {
    "sigmoid", "hardsigmoid", "softplus", "softmax", "safe_softmax", "abs", "exp", "square",
}  # fmt: skip
_PERHAPS: Final = _POSITIVE | {"clamp", "maximum", "pow"}
_FEWEST_POSITIVE: Final = 2
_LONGEST_END: Final = 24


@rule(
    "relu-after-add-deep",
    severity="warning",
    summary="A very deep net has a ReLU on its path: what the stream carries is cut off again and again.",
    explanation="More than 60 units of one stream have a ReLU behind the addition, in the unit or before the next, and"
    " the share of negative entries that these ReLUs set to zero, measured at each, adds up to more than one: on the"
    " average every entry is cut at least once. ResNets of up to 152 layers (50 units) are left alone; the share alone"
    " says little, as it falls with depth in a fresh net.",
    fix="move the ReLU into the branch, before its weights (pre-activation: x + conv(relu(bn(x)))), and put one"
    " norm and ReLU behind the last unit",
    source="He et al. 2016, arXiv 1603.05027, section 4 and table 5",
    faulty=program(
        CONV, unit="return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))", depth=64
    ),
    healthy=program(
        CONV,
        unit="return x + self.second(F.relu(self.norm2(self.first(F.relu(self.norm1(x))))))",
        depth=64,
        rest="nn.BatchNorm2d(8), nn.ReLU()",
    ),
    wants=lambda evidence: [
        Want(node=node, name="cut", reduce=_share_cut)
        for chain in _deep_chains(evidence)
        for _, node in chain
        if node >= 0
    ],
    explains=("gradient-vanishing",),
)
def relu_after_add_deep(evidence: Evidence) -> Iterator[Finding]:
    """Fire for a stream of many units with ReLU behind the addition, if together they cut off much."""
    for chain in _deep_chains(evidence):
        cut = [evidence.seen.get((node, "cut")) for _, node in chain]
        known = [c for c in cut if c is not None]
        if known and sum(known) < CUTS:
            continue
        first = chain[0][0]
        said: dict[str, float | int | str] = {"units": len(chain)}
        what = "not measured how much it cuts off"
        if known:
            said |= {"cut_share_first": known[0], "cut_share_last": known[-1], "cuts_per_entry": sum(known)}
            what = f"an entry of the stream is set to zero {sum(known):.2g} times on its way"
        yield RULES["relu-after-add-deep"].finding(
            first.path, f"ReLU behind the addition of {len(chain)} units in a row: {what}", said
        )


def _deep_chains(evidence: Evidence) -> list[list[tuple[Member, int]]]:
    """Streams with more than `DEEP` rectified units, each unit with the node of its ReLU (-1 if it does not show)."""
    found = []
    for chain in chains(evidence):
        rectified = [
            (p.member, _rectifier(p, evidence)) for p in passed(chain, evidence)
            if has(p.ops, "activation", _RECTIFIERS)
        ]  # fmt: skip
        if len(rectified) > DEEP:
            found.append(rectified)
    return found


def _rectifier(behind: Passed, evidence: Evidence) -> int:
    nodes = evidence.graph.nodes
    named = [
        i for i in behind.nodes
        if nodes[i].op in ops.ACTIVATION and ops.activation_name(nodes[i].op, nodes[i].attrs) in _RECTIFIERS
    ]  # fmt: skip
    return named[0] if named else -1


def _share_cut(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    return (result != operands[0]).double().mean()


@rule(
    "nonnegative-branch",
    severity="warning",
    summary="The branch ends in a function that is never negative: the stream can only grow.",
    explanation="The branch's last operation before the addition (scales, dropout and gates apart) is a ReLU, sigmoid,"
    " softplus or the like, and its measured minimum at two or more units is not below zero. A ReLU behind the addition"
    " is another matter, and so is a highway, whose gate lets the stream shrink; GELU, SiLU and LeakyReLU have negative"
    " values.",
    fix="let the branch end with its weights or their norm: move the activation before them"
    " (x + conv(relu(...)) instead of x + relu(conv(...)))",
    source="He et al. 2016, arXiv 1603.05027, table 2c",
    faulty=program(CONV, unit="return x + F.relu(self.norm1(self.first(x)))", depth=4),
    healthy=program(CONV, unit="return x + self.norm1(self.first(F.relu(x)))", depth=4),
    wants=lambda evidence: [
        Want(node=node, name="smallest", reduce=_smallest) for _, node in _rectified_branches(evidence)
    ],
    explains=("stream-growth",),
)
def nonnegative_branch(evidence: Evidence) -> Iterator[Finding]:
    """Fire for branches that end in a non-negative function and give nothing negative."""
    found: list[tuple[Member, int, float | None]] = []
    for member, node in _rectified_branches(evidence):
        smallest = evidence.seen.get((node, "smallest"))
        certain = evidence.graph.nodes[node].op in _POSITIVE
        if certain if smallest is None else smallest >= 0:
            found.append((member, node, smallest))
    if len(found) < _FEWEST_POSITIVE:
        return
    first, node, _ = found[0]
    known = [s for _, _, s in found if s is not None]
    said: dict[str, float | int | str] = {"units": len(found), "ends_in": evidence.graph.nodes[node].op}
    if known:
        said["smallest_branch_value"] = min(known)
    begun, ended = first.unit.numbers.stream_rms, found[-1][0].unit.numbers.out_rms
    if begun and ended:
        said["stream_growth"] = ended / begun
    measured = f"its smallest value is {min(known):.2g}" if known else "not measured"
    yield RULES["nonnegative-branch"].finding(
        first.path,
        f"the branch ends in {said['ends_in']} in {module_of(node, evidence)} and only ever adds ({measured})"
        + repeated([m for m, _, _ in found]),
        said,
    )


def _rectified_branches(evidence: Evidence) -> list[tuple[Member, int]]:
    """Units of the main stream all of whose branches end in what may be a non-negative function, and that node."""
    found = []
    for member in stream(evidence):
        candidate = member.described.candidate
        subtracted = any(evidence.graph.nodes[t.add].op != "add" for t in candidate.branches)
        if candidate.merge != "add" or subtracted or has(member.unit.form.shortcut, "gate"):
            continue  # behind a gate on the shortcut (highway) the stream can shrink
        ends = [_last_function(t.node, evidence) for t in candidate.branches]
        if ends and all(e is not None for e in ends):
            found += [(member, e) for e in ends[:1] if e is not None]
    return found


def _last_function(i: int, evidence: Evidence) -> int | None:
    """The non-negative function at the end of a branch, behind views, scales, dropout, pooling and gates."""
    links, routes = evidence.found.links, evidence.found.routes
    for _ in range(_LONGEST_END):
        i = links.strip(i)
        node = links.nodes[i]
        if node.op in _PERHAPS:
            return i
        steps = [s for s in routes.steps(i) if s.kind in ("view", "scale", "dropout", "gate", "pool", "slice")]
        if len(steps) != 1 or steps[0].detail.startswith("-"):
            return None
        i = steps[0].source
    return None


def _smallest(result: torch.Tensor, _operands: Sequence[torch.Tensor]) -> torch.Tensor:
    return result.amin()
