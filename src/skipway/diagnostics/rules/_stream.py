"""What rules about the stream share: its units in order, what leads from one to the next, what comes behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.rules._rule import Evidence
    from skipway.form import Op
    from skipway.units.describe import Described
    from skipway.units.find import Found
    from skipway.units.unit import Unit

__all__ = [
    "Behind", "Member", "Passed", "behind", "chains", "has", "inner_chains", "keeps_shape", "module_of", "passed",
    "repeated", "stream",
]  # fmt: skip

# Between two units lie a downsampling layer, a few views, a gate: a longer way is another part of the model.
_MOST_STEPS: Final = 60
_MOST_AHEAD: Final = 400
_STATISTICS: Final = frozenset({"rsqrt", "sqrt", "std", "var", "var_mean", "linalg_vector_norm", "norm"})
_LIGHT: Final = (
    ops.VIEW | ops.SLICE | ops.POOL | ops.PAD | ops.DROPOUT | ops.MULTIPLY | ops.ADD | ops.ACTIVATION | ops.POINTWISE
    | frozenset({"cat", "stack", "gather", "index_select", "max", "amax", "erf"})
)  # fmt: skip
_ACTIVATES: Final = ops.ACTIVATION | {"erf"}


@dataclass(frozen=True, slots=True)
class Member:
    """A unit of the main stream with the nodes behind its formula."""

    unit: Unit
    described: Described

    @property
    def path(self) -> str:
        """Module path of the unit."""
        return self.unit.path


def stream(evidence: Evidence) -> list[Member]:
    """The units of the main stream, in order of execution."""
    return evidence.once("stream", lambda: [Member(evidence.units[k], evidence.described[k]) for k in evidence.main])


def chains(evidence: Evidence) -> list[list[Member]]:
    """The units of the main stream by stream: an encoder's and a decoder's are two."""
    return evidence.once("chains", lambda: _chains(stream(evidence), evidence))


def inner_chains(evidence: Evidence) -> list[list[Member]]:
    """The streams within the branches of units of the main stream, of the units directly inside."""
    return evidence.once("inner chains", lambda: list(_inner_chains(evidence)))


def _inner_chains(evidence: Evidence) -> Iterator[list[Member]]:
    inside = [
        Member(unit, described)
        for unit, described in zip(evidence.units, evidence.described, strict=True)
        if unit.level == 1 and unit.kind == "unit"
    ]
    for outer in stream(evidence):
        joins = set(outer.described.candidate.inner)
        yield from _chains([m for m in inside if m.described.candidate.join in joins], evidence)


def _chains(members: Sequence[Member], evidence: Evidence) -> list[list[Member]]:
    found: list[list[Member]] = []
    by_end: dict[int, list[Member]] = {}
    links = evidence.found.links
    for member in members:
        chain = _chain_before(member.described.candidate.base, by_end, evidence.found)
        if chain is None:
            chain = []
            found.append(chain)
        chain.append(member)
        for end in (member.described.candidate.join, member.described.end):
            by_end[links.strip(end)] = chain
    return found


def _chain_before(base: int, by_end: dict[int, list[Member]], found: Found) -> list[Member] | None:
    links, routes = found.links, found.routes
    i = base
    for _ in range(_MOST_STEPS):
        i = links.strip(i)
        if i in by_end:
            return by_end[i]
        node = links.nodes[i]
        data = links.data_inputs(node)
        steps = [s for s in routes.steps(i) if s.kind != "cat"] if len(data) > 1 else []
        if len(data) == 1:
            i = data[0]
        elif len(steps) == 1:  # a norm written by hand, a gate
            i = steps[0].source
        else:
            return None
    return None


@dataclass(frozen=True, slots=True)
class Passed:
    """What a unit's sum passes on its way to the next unit: what follows the sum, and what stands between the two.

    Args:
        member: the unit.
        ops: the operations in order.
        nodes: their nodes.
    """

    member: Member
    ops: tuple[Op, ...]
    nodes: tuple[int, ...]


def passed(chain: Sequence[Member], evidence: Evidence) -> list[Passed]:
    """What the sum of each unit of a stream passes.

    Weights between two units, a new shape or a projected shortcut begin another part of the stream: there a norm and an
    activation in front of the split are usual (He et al. 2016 have them in each stage's first unit).
    """
    links = evidence.found.links
    found = []
    for member, following in zip(chain, (*chain[1:], None), strict=True):
        ops_, nodes = member.unit.form.after, member.described.after_nodes
        between = following.unit.before if following is not None and _goes_on(following, evidence) else None
        if following is not None and between is not None and not has(between.ops, "weight"):
            region = links.region(links.strip(member.described.end), following.described.candidate.base)
            if region:
                ops_, nodes = (*ops_, *between.ops), (*nodes, *region)
        found.append(Passed(member, ops_, nodes))
    return found


def _goes_on(following: Member, evidence: Evidence) -> bool:
    """Whether a unit goes on with the stream as it is, rather than begin another part of it."""
    return keeps_shape(following, evidence) and not has(following.unit.form.shortcut, "projection")


def keeps_shape(member: Member, evidence: Evidence) -> bool:
    """Whether the stream has one shape before and behind a unit, so that an identity would do as its shortcut."""
    candidate, nodes = member.described.candidate, evidence.graph.nodes
    return nodes[candidate.x].shape == nodes[candidate.join].shape


def has(ops_: Sequence[Op], kind: str, details: frozenset[str] | None = None) -> bool:
    """Whether there is an operation of a kind (and of one of the details) among these."""
    return any(op.kind == kind and (details is None or op.detail in details) for op in ops_)


def repeated(members: Sequence[Member]) -> str:
    """How often a fault occurs, behind its message."""
    return f" \N{MULTIPLICATION SIGN}{len(members)}" if len(members) > 1 else ""


def module_of(node: int, evidence: Evidence) -> str:
    """Module path in which an operation ran, as it stands in a message."""
    return evidence.graph.calls[evidence.graph.nodes[node].call].path or "the model's forward"


@dataclass(frozen=True, slots=True)
class Behind:
    """What a value comes to before the next weights: whether a norm, an activation, and what it ends in.

    Args:
        norms: norms that read the value or a light function of it, in order; -1 for one written by hand.
        activated: whether an activation acts on it.
        ends: the first weighted operations that it comes to; empty where it is given out as it is.
    """

    norms: tuple[int, ...]
    activated: bool
    ends: tuple[int, ...]


def behind(start: int, evidence: Evidence) -> Behind:
    """Walk from a value on to the next weights, through views, pooling, sums, activations and norms."""
    links = evidence.found.links
    norms: list[int] = []
    ends: list[int] = []
    activated = False
    seen, pending = {start}, [start]
    while pending and len(seen) < _MOST_AHEAD:
        for c in _readers(pending.pop(), evidence):
            if c in seen:
                continue
            seen.add(c)
            op = links.nodes[c].op
            if op in ops.NORM:
                norms.append(c)
            elif op in _STATISTICS:
                norms.append(-1)
            elif op not in _LIGHT:
                ends.append(c)
                continue
            activated = activated or op in _ACTIVATES
            pending.append(c)
    return Behind(tuple(sorted(norms)), activated, tuple(sorted(ends)))


def _readers(i: int, evidence: Evidence) -> Iterator[int]:
    links = evidence.found.links
    return (c for c in links.consumers[i] if links.alive[c] and links.nodes[c].floating)
