"""Which units are counted, and at which function call and operand each of them is marked."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from skipway.trace.ops import ADDS_MATMUL, ADDS_PRODUCT
from skipway.units.kinds import kinds, levels
from skipway.units.naming import paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.trace.graph import Address, Node
    from skipway.units.describe import Described
    from skipway.units.find import Term
    from skipway.units.links import Links

__all__ = ["Act", "Plan", "plan_marks"]

# Functions at whose operands a branch can be told from a shortcut.
_JOINS: Final = frozenset([
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "subtract", "__sub__", "__rsub__", "__isub__",
    "rsub", "mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply", "cat", "concat", "concatenate", "addmm",
    "addmm_", "baddbmm", "baddbmm_", "addbmm", "addmv", "addcmul", "addcmul_", "addcdiv", "addcdiv_", "lerp", "lerp_",
    "sum", "mean",
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Act:
    """What is done at a function call.

    Args:
        kind: ``"operand"``: mark the operands at `positions`; ``"part"``: mark parts of the list or stack that is the
            first argument; ``"lerp"``: mark one side of an interpolation; ``"x"`` and ``"end"``: note the result;
            ``"x read"``: note the operand.
        node: the recorded operation.
        unit: number of the counted unit.
        shortcut: whether the operand is the shortcut.
    """

    kind: str
    node: int
    unit: int = -1
    shortcut: bool = False
    positions: tuple[int, ...] = ()


@dataclass
class Plan:
    """Where a run is watched and marked.

    Args:
        units: module paths of the counted units, in order of execution.
        acts: what is done at which function call.
        x: the node that the first counted unit reads, `leaf` whether it is the model's input itself.
        join: the node in which the last counted unit joins.
        chain: whether all ways from one unit's x to the next lead through its join.
        uncounted: paths of units on the stream that cannot be marked.
        elsewhere: how many units do not descend from x (another tower).
    """

    units: list[str]
    acts: dict[Address, list[Act]]
    x: int
    leaf: bool
    join: int
    chain: bool
    uncounted: list[str] = field(default_factory=list)
    elsewhere: int = 0


def plan_marks(described: Sequence[Described], links: Links) -> Plan | None:
    """Count the units of the main stream behind the first whose x can be seen; None where there is none.

    Args:
        described: all units that were found and proved.
        links: relations of the recorded graph.
    """
    listed = list(described)
    of_kind = kinds(listed, links)
    stream = [
        (unit, path)
        for unit, path, kind, level in zip(listed, paths(listed, links), of_kind, levels(listed, of_kind), strict=True)
        if level == 0 and kind in ("unit", "merge")
    ]
    last = {node.caller: node.id for node in links.nodes if node.caller is not None}
    marked = [(unit, path, _marks(unit, links)) for unit, path in stream]
    for at, (first, _, marks) in enumerate(marked):
        x = first.candidate.x
        leaf = links.nodes[x].op == "input"
        if not marks or not (leaf or _result(x, last, links) or _reading(x, links)):
            continue
        return _planned(marked[at:], x, leaf, links, last, before=[path for _, path, _ in marked[:at]])
    return None


_Last = dict[tuple[int, str, int], int]
_Marked = tuple["Described", str, "dict[Address, list[Act]]"]


def _planned(
    marked: list[_Marked], x: int, leaf: bool, links: Links, last: _Last,
    before: list[str],
) -> Plan:  # fmt: skip
    behind = [m for m in marked if links.descends(m[0].candidate.join, x)]
    counted = [m for m in behind if m[2]]
    acts: defaultdict[Address, list[Act]] = defaultdict(list)
    for number, (_, _, marks) in enumerate(counted):
        for address, found in marks.items():
            acts[address] += [replace(act, unit=number) for act in found]
    if _result(x, last, links):
        _watch("x", x, acts, last, links)
    elif not leaf:
        for address, act in _reading(x, links).items():
            acts[address].insert(0, act)
    end = counted[-1][0]
    for node in (end.end, end.candidate.join):
        if _result(node, last, links):
            _watch("end", node, acts, last, links)
            break
    uncounted = before + [path for _, path, marks in behind if not marks]
    return Plan(
        units=[path for _, path, _ in counted],
        acts=dict(acts),
        x=x,
        leaf=leaf,
        join=end.candidate.join,
        chain=_is_chain([unit for unit, _, _ in counted], links),
        uncounted=uncounted,
        elsewhere=len(marked) - len(behind),
    )


def _reading(x: int, links: Links) -> dict[Address, Act]:
    """The call that reads x first, for one that no call returns (``x.mT``, an alias); empty if there is none."""
    for c in sorted(links.consumers[x]):
        node = links.nodes[c]
        address = links.graph.address(node)
        if address is not None and not node.attrs.get("fused"):
            return {address: Act("x read", x, positions=(node.inputs.index(x),))}
    return {}


def _watch(kind: str, i: int, acts: dict[Address, list[Act]], last: _Last, links: Links) -> None:
    """Note the result of the call in which a node was made; a linear layer on tokens returns a view of its matrix."""
    node = links.nodes[i]
    address = links.graph.address(node)
    if address is None or node.caller is None:
        raise AssertionError("a node whose result is watched was made in a function call")
    result = last[node.caller]
    acts.setdefault(address, []).append(Act(kind, result if links.strip(result) == links.strip(i) else i))


def _result(i: int, last: _Last, links: Links) -> bool:
    """Whether a node is what its function call returned, or a part of it."""
    node = links.nodes[i]
    if node.caller is None:
        return False
    final = links.nodes[last[node.caller]]
    if "part" in node.attrs and node.source == final.source and node.ordinal == final.ordinal:
        return True
    return i == final.id or links.strip(final.id) == links.strip(i) or bool(final.attrs.get("extra", False))


def _marks(unit: Described, links: Links) -> dict[Address, list[Act]]:
    """The marks of one unit by function call, shortcut first; empty where an operand cannot be told apart."""
    candidate = unit.candidate
    found: defaultdict[Address, list[Act]] = defaultdict(list)
    for term in (candidate.shortcut, *candidate.branches):
        add = links.nodes[term.add]
        address = links.graph.address(add)
        act = _mark(term, add, shortcut=term is candidate.shortcut)
        if address is None or act is None or address.function not in _JOINS:
            return {}
        found[address].append(act)
    return dict(found)


def _mark(term: Term, add: Node, *, shortcut: bool) -> Act | None:
    fused = add.attrs.get("fused", "")
    position = 0 if fused and term.node == add.inputs[0] else term.position
    if add.op == "cat":  # its branch is the first or the last part, all others are the shortcut
        count = len(add.inputs)
        branch = (count - 1 if term.position == 0 else 0) if shortcut else (count - 1 if term.position else 0)
        positions = tuple(k for k in range(count) if (k == branch) != shortcut)
        return Act("part", add.id, shortcut=shortcut, positions=positions)
    if fused.startswith("stack"):
        return Act("part", add.id, shortcut=shortcut, positions=(term.position,))
    if fused == "lerp":
        return Act("lerp", add.id, shortcut=shortcut, positions=(position,))
    if fused in ADDS_MATMUL | ADDS_PRODUCT:
        return Act("operand", add.id, shortcut=shortcut, positions=(1, 2) if position else (0,))
    return None if fused else Act("operand", add.id, shortcut=shortcut, positions=(position,))


def _is_chain(units: Sequence[Described], links: Links) -> bool:
    """Whether every way from one unit's x to the next unit's x leads through the one's join."""
    return all(_leads_through(unit, later, links) for unit, later in itertools.pairwise(units))


def _leads_through(unit: Described, later: Described, links: Links) -> bool:
    join, starts, goal = unit.candidate.join, (unit.candidate.x, unit.candidate.base), later.candidate.x
    if goal != join and not links.descends(goal, join):
        return False
    pending, seen = [goal], {join}
    while pending:
        i = pending.pop()
        if i in starts:
            return False
        if i not in seen:
            seen.add(i)
            pending += [j for j in links.data_inputs(links.nodes[i]) if j in starts or links.descends(j, starts[1])]
    return True
