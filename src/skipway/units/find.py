"""Find residual units in a recorded graph.

A unit is a join one of whose operands leads back, lightly, to what the other computes from.

For a join with operands t, o₁, o₂ …: walk back from t over light steps and stop at the first node x that
another operand
descends from. If the way from x to that operand does real work, the join is a unit with shortcut t and branch o.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skipway.trace import ops
from skipway.units.links import Links
from skipway.units.routes import Route, Routes, Step

if TYPE_CHECKING:
    from skipway.form import Merge
    from skipway.trace.graph import Graph, Node
    from skipway.units.work import Work

__all__ = ["Candidate", "Found", "Rejected", "Term", "find", "join_factor", "nest"]


@dataclass(frozen=True, slots=True)
class Term:
    """An operand of a join: the node, the add it enters and its position there."""

    node: int
    add: int
    position: int


@dataclass(slots=True)
class Candidate:
    """A residual unit as the graph shows it, not yet proved.

    Args:
        join: the node that merges; `adds` all nodes of the merge where several additions make one.
        x: the node that shortcut and branch both start from; `base` the same behind views.
        shortcut: the operand that is the shortcut, `route` its way back to x.
        branches: operands that compute from x; `sides` the others.
        region: nodes of the branches.
        inner: joins of units inside the branches.
        pair: whether it is half of a reversible block.
        reads: the node that its branch reads where that is not x: the other half's stream.
        merge: how the operands meet.
    """

    join: int
    adds: tuple[int, ...]
    x: int
    base: int
    shortcut: Term
    route: Route
    branches: list[Term]
    sides: list[Term]
    region: frozenset[int]
    inner: list[int] = field(default_factory=list)
    pair: bool = False
    reads: int | None = None
    merge: Merge = "add"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A join that is not a unit, with the reason."""

    join: int
    reason: str


@dataclass
class Found:
    """All candidates of a graph in order of execution, and the joins that are none."""

    links: Links
    routes: Routes
    candidates: list[Candidate]
    rejected: list[Rejected]


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.links = Links(graph)
        self.routes = Routes(self.links)
        self.nodes = graph.nodes
        self.joins = 0

    # ---- joins

    def operands(self, node: Node) -> list[Term]:
        """Operands of an addition that carry signal: biases, masks and random tensors are none."""
        links, nodes = self.links, self.nodes
        live = [i for i in node.inputs if nodes[i].floating and nodes[i].op not in ("param", "const")]
        live = [i for i in live if not links.is_random(i)]
        if len(live) < 2:
            return []
        # What does not depend on the input is an operand only if another operand is computed from it (learned queries).
        kept = {
            i for i in live
            if nodes[i].data
            or any(links.descends(o, i) or links.descends(o, links.strip(i)) for o in live if o != i)
        }  # fmt: skip
        terms = [Term(i, node.id, p) for p, i in enumerate(node.inputs) if i in kept]
        return terms if len(terms) > 1 else []

    def groups(self) -> dict[int, list[Term]]:
        """Maximal sums by their last addition; an inner sum stays by itself where it is a unit with another x."""
        links = self.links
        groups: dict[int, list[Term]] = {}
        absorbed: set[int] = set()
        for node in self.nodes:
            if node.op not in ops.ADD or not links.alive[node.id] or not links.is_data(node.id):
                continue
            terms = self.operands(node)
            if not terms:
                continue
            flat: list[Term] = []
            merged: list[int] = []
            for term in terms:
                inner = links.strip(term.node)
                if inner in groups and inner not in absorbed and len(links.readers(inner)) == 1:
                    flat += groups[inner]
                    merged.append(inner)
                else:
                    flat.append(term)
            if merged and self._flatten(node.id, terms, flat, [groups[m] for m in merged], merged):
                absorbed.update(merged)
                groups[node.id] = flat
            else:
                groups[node.id] = terms
        return {join: terms for join, terms in groups.items() if join not in absorbed}

    def _flatten(
        self, join: int, terms: list[Term], flat: list[Term], inner_terms: list[list[Term]], inner: list[int]
    ) -> bool:
        units = [self.best(i, t) for i, t in zip(inner, inner_terms, strict=True)]
        if self._subtracts_a_copy(join, terms, units):
            return False
        outer = self.best(join, terms)
        if outer is None:
            return self.best(join, flat) is not None or not any(units)
        same_x = any(u is not None and u.base == outer.base for u in units)
        if any(units) and not same_x:
            return False
        return self.best(join, flat) is not None

    def _subtracts_a_copy(self, join: int, terms: list[Term], inner: list[Candidate | None]) -> bool:
        """Whether y − g(x) takes from an inner unit's y = h(x) + F(x) no more than x itself, perhaps normalised."""
        if self.nodes[join].op != "sub" or len(terms) != 2:
            return False
        taken = terms[1].node
        for unit in inner:
            if unit is not None and (taken == unit.x or self.links.descends(taken, unit.x)):
                between = self.links.region(unit.x, taken)
                if not any(self.nodes[i].op in ops.WORKING for i in between):
                    return True
        return False

    # ---- one join

    def best(self, join: int, terms: list[Term], why: Counter[str] | None = None) -> Candidate | None:
        """The cheapest valid reading of a join as a unit: where all operands come from x, then nearest x first."""
        links, nodes = self.links, self.nodes
        ids = [t.node for t in terms]
        if len(set(ids)) < 2:
            return None
        root = nodes[join]
        why = Counter() if why is None else why
        best: tuple[tuple[int, bool, bool, int], Candidate] | None = None
        for term in terms:
            if math.prod(nodes[term.node].shape) != math.prod(root.shape):
                continue
            others = [t for t in terms if t.node != term.node]
            union = 0
            for other in others:
                union |= links.ancestors[other.node]
            if not union:
                continue
            walls = {t.node for t in others} | {links.strip(t.node) for t in others}
            wall = frozenset(walls - {links.strip(term.node)})
            for x, route in self.routes.back(term.node, union, wall).items():
                if best is not None and (route.cost, False, False, -x) >= best[0]:
                    continue
                branches = [t for t in others if links.descends(t.node, x)]
                work = self.routes.traits.between(x, [t.node for t in branches])
                # Both sides of (1-z)·x + z·y lead back lightly; the stream is the one that the other is computed from.
                gate = "gate" in route.kinds() and self._takes_in_more(x, work)
                # In x + y + A(y) with y = F(x) the stream is x, though A(y) comes from y as well.
                apart = not route.cost and any(nodes[t.node].data for t in others if t not in branches)
                key = (route.cost, gate, apart, -x)
                if best is not None and key >= best[0]:
                    continue
                reason = self.objection(root, term, route, work)
                if reason:
                    why[reason] += 1
                    continue
                sides = [t for t in others if t not in branches]
                adds = tuple(sorted({t.add for t in terms} | {join}))
                best = (
                    key,
                    Candidate(join, adds, x, links.strip(x), term, route, branches, sides, work.region()),
                )
        return best[1] if best else None

    def _takes_in_more(self, x: int, work: Work) -> bool:
        """Whether data from elsewhere than x enters a branch."""
        links = self.links
        region = work.region()
        inside = region | {x, links.strip(x)}
        return any(
            j not in inside and links.strip(j) not in inside for i in region for j in links.data_inputs(self.nodes[i])
        )

    def objection(self, root: Node, term: Term, route: Route, work: Work) -> str:
        """Why a reading of a join is not a unit, empty if nothing speaks against it."""
        if not work.heavy:
            return "the branch does no work"
        kinds = route.kinds()
        if "projection" in kinds or "kernel" in kinds:
            if not work.nonlinear:
                spatial = work.spatial
                if not spatial or "kernel" in kinds or kinds.count("projection") > 1:
                    return "both operands are linear maps of one tensor"
            if "kernel" in kinds and not work.weighted:
                return "a convolution of the values beside their attention"
            if "activation" in kinds:
                weights = sum(self.nodes[i].op in ops.WEIGHTED for i in work.region())
                if weights < 2:
                    return "both operands are linear maps of one tensor"
        negative = sum(s.kind == "scale" and s.detail.startswith("-") for s in route.steps) % 2
        subtracted = self.nodes[term.add].op == "sub" and term.position == 1
        if bool(negative) != subtracted:
            return "the shortcut is subtracted"
        if self.disjoint(route, work):
            return "shortcut and branch read disjoint parts"
        # Learned queries and class tokens are streams; a bias made from parameters is none.
        inside = bool(work.nodes & self.joins) or self.nodes[route.start].shape != root.shape
        return "the shortcut does not depend on the input" if inside and not self.links.is_data(route.start) else ""

    def disjoint(self, route: Route, work: Work) -> bool:
        """Whether the shortcut takes one part of a tensor and every way into the branch another (Res2Net)."""
        slices = [s for s in route.steps if s.kind == "slice"]
        if not slices:
            return False
        nearest = slices[-1]
        if self.links.strip(nearest.source) != self.links.strip(route.start):
            return False
        entries = [self.nodes[c] for c in self.links.consumers[nearest.source] if work.nodes >> c & 1]
        return bool(entries) and all(self._apart(self.nodes[nearest.node], e) for e in entries)

    def _apart(self, a: Node, b: Node) -> bool:
        if "part" in a.attrs and a.op == b.op:
            return bool(a.attrs["part"] != b.attrs.get("part"))
        mine, theirs = self._range(a), self._range(b)
        if mine is None or theirs is None or mine[0] != theirs[0]:
            return False
        return theirs[2] <= mine[1] or mine[2] <= theirs[1]

    def _range(self, node: Node) -> tuple[int, int, int] | None:
        if node.op != "slice":
            return None
        shape = self.nodes[node.inputs[0]].shape
        dim = node.attrs.get("dim", 0) % len(shape)
        length = shape[dim]
        start, end = node.attrs.get("start") or 0, node.attrs.get("end")
        start = max(start + length, 0) if start < 0 else min(start, length)
        end = length if end is None else (end + length if end < 0 else min(end, length))
        return dim, start, end

    # ---- all joins

    def run(self) -> Found:
        candidates: dict[int, Candidate] = {}
        reasons: dict[int, str] = {}
        terms_of = self.groups()
        for join in sorted(terms_of):
            why: Counter[str] = Counter()
            if self.nodes[join].op == "sub" and self.routes.interpolates(join):
                reasons[join] = "part of an interpolation"
                continue
            candidate = self.best(join, terms_of[join], why)
            if candidate is None:
                reasons[join] = next(iter(why), "no operand leads back to what the others compute from")
            else:
                self.joins |= 1 << join
                candidates[join] = candidate
        for node in self.nodes:
            if node.op in ops.ADDS_AT and self.links.alive[node.id] and len(self.links.data_inputs(node)) > 1:
                reasons[node.id] = "adds at some places of the stream only, which an index names"
        for candidate in self._couplings(terms_of, reasons, candidates):
            candidates[candidate.join] = candidate
            del reasons[candidate.join]
        ordered = [candidates[j] for j in sorted(candidates)]
        nest(ordered)
        rejected = [Rejected(j, r) for j, r in sorted(reasons.items())]
        return Found(self.links, self.routes, ordered, rejected)

    def _couplings(
        self, terms_of: dict[int, list[Term]], reasons: dict[int, str], candidates: dict[int, Candidate]
    ) -> list[Candidate]:
        """The first half of each reversible block: y₁ = x₁ + F(x₂), where later y₂ = x₂ + G(y₁).

        By itself it looks like a Res2Net step (its operands read disjoint parts); the second half tells them apart.
        """
        found = []
        second = {
            self.links.strip(c.shortcut.node): c for c in candidates.values() if not c.route.kinds().count("kernel")
        }
        for join, reason in reasons.items():
            if reason != "shortcut and branch read disjoint parts" or len(terms_of[join]) != 2:
                continue
            for term, other in (terms_of[join], terms_of[join][::-1]):
                stream = self.links.strip(term.node)
                partner = next(
                    (
                        s for s, c in second.items()
                        if self.links.descends(other.node, s) and self.links.descends(c.branches[0].node, join)
                        and self._siblings(s, stream) and not self.links.descends(other.node, stream)
                    ),
                    None,
                )  # fmt: skip
                if partner is None:
                    continue
                work = self.routes.traits.between(partner, [other.node])
                if not work.heavy:
                    continue
                later = second[partner]
                later.pair, later.reads = True, join
                later.region = self.routes.traits.between(join, [t.node for t in later.branches]).region()
                route = Route(stream, 0, self._views(term.node, stream))
                found.append(
                    Candidate(
                        join, (join,), stream, stream, term, route, [other], [], work.region(), pair=True, reads=partner
                    )
                )
                break
        return found

    def _siblings(self, a: int, b: int) -> bool:
        """Whether two nodes are different parts of one tensor."""
        first, second = self.nodes[a], self.nodes[b]
        return a != b and first.op in ops.SLICE and second.op in ops.SLICE and first.inputs[:1] == second.inputs[:1]

    def _views(self, i: int, until: int) -> tuple[Step, ...]:
        steps = []
        while i != until:
            source = next(j for j in self.nodes[i].inputs if self.nodes[j].floating)
            steps.append(Step("view", self.nodes[i].op, i, source))
            i = source
        return tuple(steps)


def join_factor(add: Node, position: int) -> float:
    """What an addition itself multiplies its operand at `position` by: alpha, beta, value, minus."""
    fused = add.attrs.get("fused", "")
    name = ""
    if fused in ops.ADDS_MATMUL:
        name = "alpha" if position else "beta"
    elif fused in ops.ADDS_PRODUCT:
        name = "value" if position else ""
    elif not fused and position == 1:
        name = "alpha"
    factor = add.attrs.get(name, 1)
    factor = float(factor) if isinstance(factor, (int, float)) else 1.0
    negative = not fused and ((add.op == "sub" and position == 1) or (add.op == "rsub" and position == 0))
    return -factor if negative else factor


def nest(candidates: list[Candidate]) -> None:
    """Note for every candidate which others join inside its branches."""
    for outer in candidates:
        outer.inner = [c.join for c in candidates if c is not outer and c.join in outer.region]


def find(graph: Graph) -> Found:
    """Find the residual units of a recorded graph (candidates, to be classified and proved)."""
    return _Finder(graph).run()
