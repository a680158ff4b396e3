"""What kind of join a unit is, how deep it lies, and what it costs."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipway.trace import ops
from skipway.units.links import members

if TYPE_CHECKING:
    from skipway.form import Op
    from skipway.units.describe import Described
    from skipway.units.links import Links
    from skipway.units.unit import Kind

__all__ = ["Cost", "cost", "is_closed", "kinds", "levels"]


def kinds(described: list[Described], links: Links) -> list[Kind]:
    """The kind of each unit; see `skipway.units.unit.Unit`."""
    calls = {d.candidate.join: links.nodes[d.candidate.join].call for d in described}
    starts: defaultdict[int, set[int]] = defaultdict(set)
    around: defaultdict[int, int] = defaultdict(int)
    for d in described:
        starts[d.candidate.base].add(d.candidate.join)
        around[d.candidate.base] += bool(d.candidate.inner)
    return [
        _kind(d, calls, starts[d.candidate.base] if around[d.candidate.base] > 1 else set(calls), links)
        for d in described
    ]


def _kind(unit: Described, calls: dict[int, int], same_start: set[int], links: Links) -> Kind:
    candidate, graph = unit.candidate, links.graph
    if candidate.merge != "add":
        return "merge"
    ops_on_shortcut = [op.kind for op in unit.form.shortcut]
    if candidate.inner:
        own = links.nodes[candidate.join].call
        if any(own not in graph.chain(calls[j]) for j in candidate.inner):
            return "long_skip"
        # A tensor that is injected joins several times, each time around units that start elsewhere; in x + λ(F(x) + x)
        # the inner sum starts from the same x and is a part of the branch.
        inner = set(candidate.inner) - same_start
        if any(_lightly_from(t.node, inner, links) for t in candidate.branches):
            return "injection"
        if "projection" in ops_on_shortcut:
            before = ops_on_shortcut[: ops_on_shortcut.index("projection")]
            if "norm" in before:
                return "injection"
    if any(_overlaps(op) for op in unit.form.shortcut) and _is_cell(unit, links):
        return "cell"
    return "unit"


def _lightly_from(i: int, joins: set[int], links: Links) -> bool:
    """Whether a branch ends in the stream itself: only views and scales lie between an inner join and its end."""
    for _ in range(12):
        i = links.strip(i)
        if i in joins:
            return True
        node = links.nodes[i]
        data = links.data_inputs(node)
        if node.op not in ops.MULTIPLY or len(data) != 1:
            return False
        i = data[0]
    return False


def _overlaps(op: Op) -> bool:
    """Whether this is pooling with windows that overlap, as no shortcut of a residual unit has it."""
    if op.kind != "pool" or not isinstance(op.detail, str):
        return False
    window = re.fullmatch(r"[a-z_]+(\d+)(?:x\d+)*(?:/(\d+)(?:x\d+)*)?", op.detail)
    return window is not None and int(window[1]) > int(window[2] or 1)


def _is_cell(unit: Described, links: Links) -> bool:
    """Whether the sum is one of several that are concatenated (NASNet, PNASNet)."""
    for i in links.readers(unit.end):
        if i >= 0 and links.nodes[i].op == "cat" and len(links.data_inputs(links.nodes[i])) >= 3:
            return True
    return False


def levels(described: list[Described], kinds_: list[Kind]) -> list[int]:
    """Depth of nesting: 0 on the main stream, one more inside each unit's branch."""
    outer = [d for d, kind in zip(described, kinds_, strict=True) if kind in ("unit", "merge")]
    found: dict[int, int] = {}
    # An outer unit joins after its inner ones, so from the last join to the first every outer level is known before.
    for unit in sorted(described, key=lambda d: -d.candidate.join):
        join = unit.candidate.join
        around = [found[o.candidate.join] for o in outer if join in o.candidate.inner]
        found[join] = 1 + max(around) if around else 0
    return [found[d.candidate.join] for d in described]


def is_closed(unit: Described, links: Links) -> bool:
    """Whether no data enters the branch but x."""
    candidate = unit.candidate
    if candidate.sides:
        return False
    inside = candidate.region | {candidate.x, candidate.base}
    if candidate.reads is not None:
        inside |= {candidate.reads}
    for i in candidate.region:
        for j in links.data_inputs(links.nodes[i]):
            if j not in inside and links.strip(j) not in inside:
                return False
    return True


@dataclass(frozen=True, slots=True)
class Cost:
    """What a unit holds and does on the recorded batch."""

    parameters: int
    flops: int
    activation_bytes: int


def cost(unit: Described, links: Links) -> Cost:
    """Parameters (each once), floating point operations and bytes made by branch, shortcut, join and what follows."""
    candidate, graph = unit.candidate, links.graph
    own = set(candidate.region) | set(unit.shortcut_nodes) | set(unit.after_nodes) | set(candidate.adds)
    used = flops = made = 0
    for i in own:
        node = links.nodes[i]
        flops += node.flops
        made += node.nbytes
        for j in node.inputs:
            if not links.nodes[j].data:
                used |= links.nodes[j].params
    parameters = sum(graph.parameter_sizes[k] for k in members(used))
    return Cost(parameters, flops, made)
