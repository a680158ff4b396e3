"""Other initial weights for the branches of anybody's model, found from its recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from skipway.trace import ops
from skipway.units.links import members
from skipway.units.weights import branch_end, branch_weights, parameter_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn

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
    value, the last third of its outputs. In other branches all weight matrices.

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
                part: torch.Tensor = weight
                if name in scores:
                    dim = _output_dim(name, unit, links) if weight.dim() == 2 else 0
                    start = 2 * weight.shape[dim] // 3
                    part = weight.narrow(dim, start, weight.shape[dim] - start)
                part.mul_(factor)
                changed += 1
    return changed


def reset_branches(located: Located, units: Iterable[str], seed: int) -> int:
    """Draw the weights of the branches anew.

    Each module does it by its own ``reset_parameters`` or ``_reset_parameters``. Matrices that are the same afterwards
    (raw parameters, modules with neither) are drawn from a normal distribution of their own standard deviation.
    Vectors of such modules stay, and what is frozen or constant: zeros and ones are no draws.

    Args:
        located: the model's units.
        units: paths of those to change.
        seed: of the draws.

    Returns:
        How many modules were reset, and matrices drawn beside them.
    """
    by_path, modules = located.units(), dict(located.model.named_modules())
    names = sorted({n for path in units for n in branch_weights(by_path[path], located.links)})
    owners = [modules[o] for o in sorted({n.rpartition(".")[0] for n in names})]
    resets = [reset for m in owners if (reset := _own_reset(m)) is not None]
    named = dict(located.model.named_parameters())
    before = {n: named[n].detach().clone() for n in names if _is_matrix(named[n])}
    drawn = 0
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for reset in resets:
            reset()
        for name, old in before.items():
            # What a module reads, where its reset has put another parameter in place of the old one.
            weight = located.model.get_parameter(name)
            if torch.equal(weight, old) and (std := float(old.float().std(correction=0))) > 0:
                weight.normal_(0.0, std)
                drawn += 1
    return len(resets) + drawn


def _own_reset(module: nn.Module) -> Callable[[], object] | None:
    """How a module draws its own weights; `nn.MultiheadAttention` has it under a private name."""
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(module, name, None)
        if callable(reset):
            return cast("Callable[[], object]", reset)
    return None


def _is_matrix(weight: torch.Tensor) -> bool:
    """Whether it is a trained matrix or kernel: gains may have the shape (C, 1, 1)."""
    return weight.requires_grad and weight.is_floating_point() and sum(length > 1 for length in weight.shape) > 1


def _output_dim(name: str, unit: Described, links: Links) -> int:
    """The dimension of a weight that lies along the outputs: 0 in `nn.Linear`, 1 where ``x @ weight`` is computed."""
    bit = 1 << links.graph.parameter_names.index(name)
    for i in sorted(unit.candidate.region):
        node = links.nodes[i]
        if node.op not in ops.MATMUL | ops.BATCHED_MATMUL or node.op.endswith("linear"):
            continue
        for is_right, operand in enumerate(node.inputs[-2:]):  # behind what is added, if anything is
            value = links.nodes[operand]
            if value.data or not value.params & bit:
                continue
            turns = 0
            while value.op != "param":
                turns += value.op in ops.TURNS
                value = next(links.nodes[j] for j in value.inputs if links.nodes[j].params & bit)
            return (is_right + turns) % 2
    return 0


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
            values |= _behind(_weighed(i, links), region, links)
    return scores, values


def _weighed(scores: int, links: Links) -> list[int]:
    """What scores are multiplied with, also behind a dropout of the scores."""
    found: list[int] = []
    pending = [scores]
    while pending:
        i = pending.pop()
        for reader in (links.nodes[c] for c in links.readers(i) if c >= 0):
            others = [j for j in links.data_inputs(reader) if links.strip(j) != links.strip(i)]
            found += others
            if not others and reader.op in ops.MULTIPLY | ops.DROPOUT:
                pending.append(reader.id)
    return found


def _behind(ends: Sequence[int], region: frozenset[int], links: Links) -> set[str]:
    reach = {i for end in ends for i in (*members(links.ancestors[end]), end)}
    return set(parameter_names(sorted(reach & region), links))
