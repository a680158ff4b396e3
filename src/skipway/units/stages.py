"""What stands after a join, stage by stage: which nodes make up its activation, its norm, its dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipway.errors import SkipwayError
from skipway.trace import ops
from skipway.units.after import After

if TYPE_CHECKING:
    from skipway.form import Op
    from skipway.units.describe import Described
    from skipway.units.find import Found

__all__ = ["Stage", "stages"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One operation after a join.

    Args:
        op: what it is; None for views and what leaves the numbers alone.
        start: the node that it is applied to.
        end: the node that it gives.
        nodes: all its nodes, `end` among them.
    """

    op: Op | None
    start: int
    end: int
    nodes: frozenset[int]


def stages(unit: Described, found: Found) -> list[Stage]:
    """The operations after a unit's join, in order; gain and bias of a norm written by hand belong to the norm."""
    links = found.links
    after = After(links, found.routes)
    after.bases = {c.base for c in found.candidates}
    after.inside = {j for c in found.candidates for j in c.inner}
    out: list[Stage] = []
    ops_so_far: list[Op] = []
    current = unit.candidate.join
    while current != unit.end:
        following, between = after.post_dominator(current)
        if following is None or following not in unit.after_nodes:
            raise SkipwayError(
                f"what follows the merge of unit {unit.form.equation()} cannot be told apart",
                "operations that follow one another",
            )
        op, _ = after.operation(links.nodes[following], between, ops_so_far)
        nodes = frozenset(between | {following})
        last = out[-1] if out else None
        if op is not None:
            ops_so_far.append(op)
        if (
            op is None
            and last is not None
            and last.op is not None
            and last.op.kind == "norm"
            and _affine(following, found)
        ):
            out[-1] = Stage(last.op, last.start, following, last.nodes | nodes)
        else:
            out.append(Stage(op, current, following, nodes))
        current = following
    return out


def _affine(node: int, found: Found) -> bool:
    """Whether a node multiplies by a learned gain or adds a learned bias."""
    at = found.links.nodes[node]
    if at.op in ops.ADD:
        return len(at.inputs) == 2 and len(found.links.data_inputs(at)) == 1
    return at.op in ops.MULTIPLY and found.routes.scale(at)[1].startswith("learned")
