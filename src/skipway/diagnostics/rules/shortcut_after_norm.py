"""Rule ``shortcut-after-norm``: the shortcut is taken behind the norm, x' = n(x) + F(n(x))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, chains, has, repeated
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding

__all__ = ["shortcut_after_norm"]

_FEWEST: Final = 2
# A block has one to three units (self-attention, cross-attention, feed-forward); what holds more is a stack.
_MOST_IN_A_BLOCK: Final = 3


@dataclass(frozen=True, slots=True)
class _Split:
    """A unit whose x is the output of a norm.

    Args:
        member: the unit.
        norm: the norm's node.
        before: the unit whose sum the norm reads, None if it reads something else.
    """

    member: Member
    norm: int
    before: Member | None


@rule(
    "shortcut-after-norm",
    severity="warning",
    summary="The shortcut is taken behind the norm: x' = n(x) + F(n(x)), so the norm stands on the path of every unit.",
    explanation="As a graph this is post-norm, shifted by half a unit, and no measured number tells the two apart."
    " Convicted where norm, split and addition lie in one module call that begins with the norm and does not end with"
    " one, or where some units of a stream have the norm on the path and others do not. Where one call holds the whole"
    " stack and begins with a norm (which may be one of the embedding), it is reported as undecided, as info.",
    fix="split before the norm: return x + self.branch(self.norm(x)) instead of x = self.norm(x) and then"
    " x + self.branch(x)",
    source="OLMo pull request 680; Compact-Transformers issue 25; Xiong et al. 2020, arXiv 2002.04745, figure 1",
    faulty=program(TOKENS, unit="x = self.norm(x); return x + self.branch(x)", depth=4, rest="nn.LayerNorm(16)"),
    healthy=program(TOKENS, unit="return x + self.branch(self.norm(x))", depth=4, rest="nn.LayerNorm(16)"),
)
def shortcut_after_norm(evidence: Evidence) -> Iterator[Finding]:
    """Fire where module calls, or units unlike their siblings, show that the norm belongs to the unit behind it."""
    for chain in chains(evidence):
        splits = _splits(chain, evidence)
        if not splits:
            continue
        opening = [s for s in splits if _opens_its_call(s, chain, evidence)]
        holders = {_holder(s, evidence) for s in opening}
        if len(holders) >= _FEWEST and any(s.before for s in opening):
            yield _finding(opening, len(chain), "norm and split lie in one module call", evidence)
            continue
        odd = _unlike_siblings(splits, chain, evidence)
        if odd:
            yield _finding(odd, len(chain), "other units of the stream split before theirs", evidence)
        elif opening and len(chain) >= _FEWEST and _all_behind(splits, chain):
            yield _finding(
                splits, len(chain), "undecided: as a graph this is post-norm behind a norm of the embedding", evidence,
                info=True,
            )  # fmt: skip


def _is_transition(call: int, units: Sequence[Member], chain: Sequence[Member], evidence: Evidence) -> bool:
    """Whether a call within the stack changes the stream's shape: norms of downsampling layers are another matter."""
    run = evidence.graph.calls[call]
    return len(units) < len(chain) and run.input_shape != run.output_shape


def _all_behind(splits: Sequence[_Split], chain: Sequence[Member]) -> bool:
    """Whether every unit of a stream splits behind a norm of the sum before (the first: of whatever was before)."""
    own = [s for s in splits if s.before is not None or s.member is chain[0]]
    return len(own) == len(chain)


def _holder(split: _Split, evidence: Evidence) -> int:
    """The innermost module call around norm and addition."""
    return _common(split.norm, split.member.described.candidate.join, evidence)


def _common(a: int, b: int, evidence: Evidence) -> int:
    graph = evidence.graph
    around = set(graph.chain(graph.nodes[a].call))
    return next(c for c in graph.chain(graph.nodes[b].call) if c in around)


def _units_in(call: int, chain: Sequence[Member], evidence: Evidence) -> list[Member]:
    graph = evidence.graph
    return [m for m in chain if call in graph.chain(graph.nodes[m.described.candidate.join].call)]


def _opens_its_call(split: _Split, chain: Sequence[Member], evidence: Evidence) -> bool:
    """Whether the call around norm and addition holds no addition before the norm, and no norm behind its last one."""
    if split.before is None and split.member is not chain[0]:
        return False  # the norm of a patch embedding, a downsampling layer
    holder = _holder(split, evidence)
    units = _units_in(holder, chain, evidence)
    if _is_transition(holder, units, chain, evidence):
        return False
    return units[0] is split.member and not has(units[-1].unit.form.after, "norm")


def _unlike_siblings(splits: Sequence[_Split], chain: Sequence[Member], evidence: Evidence) -> list[_Split]:
    """Splits whose norm does not belong to the unit before, in a stream where other units follow without a norm."""
    links, calls = evidence.found.links, evidence.graph.calls
    ends = {links.strip(e) for m in chain for e in (m.described.candidate.join, m.described.end)}
    normed = {s.member.path for s in splits}
    if not any(m.described.candidate.base in ends and m.path not in normed for m in chain[1:]):
        return []
    own, shared = [], []
    for split in splits:
        if split.before is None:
            continue
        call = _holder(split, evidence)
        to_unit = calls[call].depth
        to_previous = calls[_common(split.norm, split.before.described.candidate.join, evidence)].depth
        units = _units_in(call, chain, evidence)
        if _is_transition(call, units, chain, evidence):
            continue
        if to_unit > to_previous and len(units) <= _MOST_IN_A_BLOCK:
            own.append(split)
        elif to_unit == to_previous:
            shared.append(split)
    found = own + (shared if len(shared) >= _FEWEST else [])
    return sorted(found, key=lambda s: s.norm)


def _finding(splits: Sequence[_Split], units: int, why: str, evidence: Evidence, *, info: bool = False) -> Finding:
    graph = evidence.graph
    first = splits[0]
    norm = graph.calls[graph.nodes[first.norm].call].path or graph.nodes[first.norm].op
    members = [s.member for s in splits]
    return RULES["shortcut-after-norm"].finding(
        first.member.path,
        f"the shortcut is taken behind {norm} and not before it ({why}){repeated(members)}",
        {"units_split_behind_norm": len(splits), "units": units, "norm": norm},
        severity="info" if info else None,
    )


def _splits(chain: Sequence[Member], evidence: Evidence) -> list[_Split]:
    """Units with an identity as shortcut that start from a norm (and an activation) of what came before."""
    links = evidence.found.links
    by_end = {links.strip(e): m for m in chain for e in (m.described.candidate.join, m.described.end)}
    found = []
    for member in chain:
        if has(member.unit.form.shortcut, "projection") or has(member.unit.form.shortcut, "norm"):
            continue
        norm = _norm_at(member.described.candidate.base, evidence)
        if norm is None:
            continue
        node, source = norm
        found.append(_Split(member, node, by_end.get(links.strip(source))))
    return found


def _norm_at(base: int, evidence: Evidence) -> tuple[int, int] | None:
    """The norm that ends in a node, perhaps through an activation, gain and bias, and what it reads."""
    links, routes = evidence.found.links, evidence.found.routes
    i = links.strip(base)
    for _ in range(6):
        node = links.nodes[i]
        if node.op in ops.NORM:
            data = links.data_inputs(node)
            return (i, data[0]) if data else None  # of learned queries: before it is no stream
        steps = routes.steps(i)
        if len(steps) == 1 and steps[0].kind == "norm":
            return i, steps[0].source
        data = links.data_inputs(node)
        light = node.op in ops.ACTIVATION or (len(steps) == 1 and steps[0].kind in ("scale", "bias", "view"))
        if not light or len(data) != 1:
            return None
        i = links.strip(data[0])
    return None
