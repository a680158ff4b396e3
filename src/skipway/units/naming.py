"""Where a unit is: the module path that a person would point at."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from skipway.trace.graph import PARAM

if TYPE_CHECKING:
    from skipway.units.describe import Described
    from skipway.units.links import Links

__all__ = ["paths", "place_of"]

# A module "holds" a branch if at least this share of its weight runs inside it (the rest are shared parts).
_HOLDS = 0.8


def place_of(node: int, links: Links) -> str:
    """Module path of the call in which a node ran, ``<root>`` for the model itself."""
    return links.graph.calls[links.nodes[node].call].path or "<root>"


def paths(described: list[Described], links: Links) -> list[str]:
    """A name for each unit: the smallest module around join and branch, or its child where it holds several units.

    ``@k`` marks the k-th call of a shared module, ``#k`` the k-th of several units that share a name.
    """
    graph = links.graph
    scopes, children = [], []
    for unit in described:
        weights = _weights(unit, links)
        total = sum(weights.values()) or 1
        chains = [(graph.chain(call), weight) for call, weight in weights.items()]
        scope = links.nodes[unit.candidate.join].call
        while scope > 0 and sum(weight for chain, weight in chains if scope in chain) < _HOLDS * total:
            scope = graph.calls[scope].parent
        inside: Counter[int] = Counter()
        for chain, weight in chains:
            if scope in chain:
                at = chain.index(scope)
                inside[chain[at - 1] if at > 0 else scope] += weight
        child, heaviest = inside.most_common(1)[0] if inside else (scope, 0)
        scopes.append(scope)
        children.append(child if child != scope and heaviest >= _HOLDS * total else None)
    shared = Counter(scopes)
    names = []
    for around, inside_it in zip(scopes, children, strict=True):
        holder = graph.calls[inside_it if shared[around] > 1 and inside_it is not None else around]
        number = graph.calls[around].number
        names.append((holder.path or "<root>") + (f"@{number}" if number else ""))
    several = Counter(names)
    seen: Counter[str] = Counter()
    for k, name in enumerate(names):
        if several[name] > 1:
            seen[name] += 1
            names[k] = f"{name}#{seen[name]}"
    return names


def _weights(unit: Described, links: Links) -> Counter[int]:
    """Parameters used by the branch's heavy operations, by module call."""
    weights: Counter[int] = Counter()
    for i in unit.candidate.region:
        node = links.nodes[i]
        if links.is_heavy(i):
            used = 0
            for j in node.inputs:
                if not links.nodes[j].data and links.nodes[j].taint & PARAM:
                    used += math.prod(links.nodes[j].shape)
            weights[node.call] += 1 + used
    return weights
