"""Other initial weights for the branches of anybody's model, found from its recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skipway.trace import ops
from skipway.units.links import members
from skipway.units.weights import branch_end, branch_weights, parameter_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from skipway.units.describe import Described
    from skipway.units.links import Links
    from skipway.units.locate import Located

__all__ = ["reset_branches", "scale_branch_ends", "scale_values", "zero_branch_ends"]

_SCORES = frozenset({"softmax", "safe_softmax"})


def zero_branch_ends(located: Located, units: Iterable[str]) -> int:
    """Set the last weight of each branch to zero, or the gain of its last norm: the unit starts as its shortcut.

    Args:
        located: the model's units.
        units: paths of those to change.

    Returns:
        How many parameters were set to zero.
    """
    return scale_branch_ends(located, units, 0.0)


def scale_branch_ends(located: Located, units: Iterable[str], factor: float) -> int:
    """Multiply the last weight of each branch (its bias too): s in ``x' = x + s·F(x)`` at the start, 1/√(2L) in GPT-2.

    Args:
        located: the model's units.
        units: paths of those to change.
        factor: what they are multiplied by, dimensionless.

    Returns:
        How many parameters were changed.
    """
    named, by_path, changed = dict(located.model.named_parameters()), located.units(), 0
    with torch.no_grad():
        for path in units:
            for end in branch_end(by_path[path], located.links):
                for name in end.names:
                    named[name].mul_(factor)
                    changed += 1
    return changed


def scale_values(located: Located, units: Iterable[str], factor: float) -> int:
    """Multiply every weight of a branch that carries values: DeepNorm's β (arXiv 2203.00555).

    In attention those are the value and output projections, not query and key; where one matrix makes query, key and
    value, its last third. In other branches all weight matrices.

    Args:
        located: the model's units.
        units: paths of those to change.
        factor: β, dimensionless.

    Returns:
        How many parameters were changed.
    """
    links, named = located.links, dict(located.model.named_parameters())
    by_path, changed = located.units(), 0
    with torch.no_grad():
        for path in units:
            unit = by_path[path]
            scores, values = _attention(unit, links)
            for name in branch_weights(unit, links):
                weight = named[name]
                if weight.dim() < 2 or (name in scores and name not in values):
                    continue
                whole = name not in scores
                (weight if whole else weight[2 * len(weight) // 3 :]).mul_(factor)
                changed += 1
    return changed


def reset_branches(located: Located, units: Iterable[str], seed: int) -> int:
    """Draw the weights of the branches anew, each module by its own ``reset_parameters``.

    Returns:
        How many modules were reset.
    """
    by_path, modules = located.units(), dict(located.model.named_modules())
    owners = {n.rpartition(".")[0] for path in units for n in branch_weights(by_path[path], located.links)}
    found = [modules[o] for o in sorted(owners) if hasattr(modules[o], "reset_parameters")]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in found:
            module.reset_parameters()
    return len(found)


def _attention(unit: Described, links: Links) -> tuple[set[str], set[str]]:
    """Names of the weights behind attention scores, and of those behind the values that the scores weigh."""
    scores: set[str] = set()
    values: set[str] = set()
    region = unit.candidate.region
    for i in region:
        node = links.nodes[i]
        if node.op in ops.ATTENTION and len(node.inputs) >= 3:
            scores |= _behind(node.inputs[:2], region, links)
            values |= _behind(node.inputs[2:3], region, links)
        elif node.op in _SCORES:
            scores |= _behind([i], region, links)
            readers = [links.nodes[c] for c in links.readers(i) if c >= 0]
            others = [j for r in readers for j in links.data_inputs(r) if links.strip(j) != links.strip(i)]
            values |= _behind(others, region, links)
    return scores, values


def _behind(ends: Sequence[int], region: frozenset[int], links: Links) -> set[str]:
    reach = {i for end in ends for i in (*members(links.ancestors[end]), end)}
    return set(parameter_names(sorted(reach & region), links))
