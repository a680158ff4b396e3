"""Which parameters a unit's branch is made of: all of them, those at its end, those that scale it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipway.trace import ops
from skipway.units.links import members

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipway.units.describe import Described
    from skipway.units.links import Links

__all__ = [
    "BranchEnd", "alive_parameters", "branch_end", "branch_weights", "parameter_names", "scale_weights",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BranchEnd:
    """The last operation of a branch that has parameters.

    Args:
        kind: ``"weight"`` (a matrix or kernel first, then its bias) or ``"norm"`` (gain and shift).
        node: the operation.
        names: its parameters, as the model names them.
    """

    kind: str
    node: int
    names: tuple[str, ...]


def alive_parameters(links: Links) -> frozenset[str]:
    """Names of the parameters that an output depends on; what is computed and thrown away counts for nothing."""
    used = 0
    for node in links.nodes:
        if node.op == "param" and links.alive[node.id]:
            used |= node.params
    return frozenset(links.graph.parameter_names[k] for k in members(used))


def branch_weights(unit: Described, links: Links) -> list[str]:
    """Names of all parameters that a branch reads."""
    return parameter_names(sorted(unit.candidate.region), links)


def branch_end(unit: Described, links: Links, *, norms: bool = True, batched: bool = False) -> list[BranchEnd]:
    """For each branch its last operation with parameters; without `norms` its last weight.

    A branch that adds its bias by itself has the bias with the weight. With `batched`, weights count too that are
    multiplied as a batch of matrices, as `einsum` does.
    """
    found = []
    working = ops.WORKING | ops.BATCHED_MATMUL if batched else ops.WORKING
    for tail in unit.tails:
        later: list[str] = []
        for i in reversed(members(links.between(unit.candidate.base, tail.output))):
            op = links.nodes[i].op
            is_norm = op in ops.NORM
            if op in ops.ADD and not links.nodes[i].attrs.get("fused"):
                later += parameter_names([i], links)
            if not (op in working or (is_norm and norms)):
                continue
            names = parameter_names([i], links)
            if op in ops.ADDS_MATMUL:  # reads its bias first
                names = [*names[1:], *names[:1]]
            if names:
                found.append(BranchEnd("norm" if is_norm else "weight", i, (*names, *later)))
                break
    return found


def scale_weights(unit: Described, links: Links) -> list[str]:
    """Names of the learned scalars and vectors that scale what a branch gives to the merge (ReZero, LayerScale)."""
    return parameter_names([i for tail in unit.tails for i in tail.scales], links)


def parameter_names(nodes: Iterable[int], links: Links) -> list[str]:
    """Names of the parameters that operations read, directly or by way of values made of nothing else, in order."""
    found: dict[int, None] = {}
    for i in nodes:
        for j in links.nodes[i].inputs:
            if not links.nodes[j].data:
                found.update(dict.fromkeys(members(links.nodes[j].params)))
    return [links.graph.parameter_names[k] for k in found]
