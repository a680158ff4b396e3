"""Rule ``broadcast-add``: shortcut and branch have different shapes, and the add broadcasts them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._joins import called, copy_of, path_of, times, weights_between
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding
    from skipway.units.links import Links

__all__ = ["broadcast_add"]

_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        return x + self.branch(x).unsqueeze(1)


model = nn.Sequential(nn.Linear(8, 8), Block(), nn.Linear(8, 2))
batch = torch.randn(4, 8)
"""
_SPREADS: Final = frozenset({"unsqueeze", "expand", "getitem", "view", "reshape", "unsafe_view", "reshape_alias"})


@rule(
    "broadcast-add",
    severity="error",
    summary="Shortcut and branch have different shapes, and their sum has neither's.",
    explanation="The shapes are those of the recorded run. A sum whose shape is neither operand's pairs every entry of"
    " one with every entry of the other: what is computed is no stream any more. Where both operands were given their"
    " own new dimension or are projections to a column and a row (aᵢ + bⱼ, graph attention), it is meant. Where only"
    " the branch broadcasts, and the sum keeps the stream's shape (a global context of 1×1), it is shown as info.",
    fix="reshape the branch to the stream's shape",
    source="dgl pull request 2867",
    faulty=_FAULTY,
    healthy=_FAULTY.replace(".unsqueeze(1)", ""),
    explains=("dead-unit", "rank-collapse"),
)
def broadcast_add(evidence: Evidence) -> Iterator[Finding]:
    """Fire for sums of a stream and its branch that have neither's shape; report branches that broadcast."""
    links = evidence.found.links
    wrong = []
    for node in links.nodes:
        if node.op in ops.ADD and links.alive[node.id] and len(node.inputs) == 2:
            pair = _stream_and_branch(node.id, links)
            if pair is not None:
                wrong.append((node.id, *pair))
    if wrong:
        yield _wrong(evidence, wrong)
    context = [
        (k, d.candidate.join, t.node)
        for k, d in enumerate(evidence.described)
        for t in d.candidate.branches
        if d.candidate.merge == "add" and _differ(links.nodes[t.node].shape, links.nodes[t.add].shape)
    ]
    if context:
        k, join, branch = context[0]
        stream, spread = list(links.nodes[join].shape), list(links.nodes[branch].shape)
        across = len(spread) == len(stream) > 1 and spread[0] == 1 < stream[0]
        yield RULES["broadcast-add"].finding(
            evidence.units[k].path,
            f"the branch {spread} is broadcast over the stream {stream}{times(len(context))}",
            {"units": len(context), "stream_shape": str(stream), "branch_shape": str(spread)},
            severity="info",
            fix=f"nothing, if one value for all {'samples of the batch' if across else 'positions'} is meant",
        )


def _wrong(evidence: Evidence, wrong: list[tuple[int, int, int]]) -> Finding:
    nodes = evidence.graph.nodes
    join, stream, branch = wrong[0]
    a, b, out = (list(nodes[i].shape) for i in (stream, branch, join))
    path = path_of(join, evidence)
    return RULES["broadcast-add"].finding(
        path,
        f"the add in {called(path)} broadcasts: the stream is {a}, the branch {b}, their sum {out}{times(len(wrong))}",
        {"adds": len(wrong), "stream_shape": str(a), "branch_shape": str(b), "sum_shape": str(out)},
        fix=f"in {called(path)} reshape the branch from {b} to the stream's {a}",
    )


def _stream_and_branch(join: int, links: Links) -> tuple[int, int] | None:
    """Operands of a sum that has neither's shape, one of which is computed from what the other is, with weights."""
    nodes = links.nodes
    node = nodes[join]
    a, b = node.inputs
    if not (links.is_data(a) and links.is_data(b)):
        return None
    if not (_differ(nodes[a].shape, node.shape) and _differ(nodes[b].shape, node.shape)):
        return None
    common = (links.ancestors[a] | 1 << a) & (links.ancestors[b] | 1 << b)
    if not common or (_spread(a, links) and _spread(b, links)):
        return None
    x = common.bit_length() - 1
    first, second = (weights_between(x, i, links) if i != x else -1 for i in (a, b))
    if max(first, second) < 1:
        return None
    stream, branch = (a, b) if first <= second else (b, a)
    fewest = min(first, second)
    if fewest < 1 and math.prod(nodes[stream].shape) != math.prod(nodes[x].shape):
        return None  # a norm or a sum of it: distances, scores
    if fewest > 0 and len(nodes[a].shape) == len(nodes[b].shape):
        return None  # two projections to columns and rows
    return stream, branch


def _differ(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether shapes differ in more than leading ones."""
    rank = max(len(shape), len(other))
    return (1,) * (rank - len(shape)) + shape != (1,) * (rank - len(other)) + other


def _spread(i: int, links: Links) -> bool:
    """Whether a value was given a dimension of size 1 on purpose."""
    for _ in range(6):
        node = links.nodes[copy_of(i, links)]
        data = links.data_inputs(node)
        if node.op not in _SPREADS | {"transpose", "permute", "t"} or len(data) != 1:
            return False
        before = links.nodes[data[0]].shape
        if node.op in _SPREADS and node.shape.count(1) > before.count(1):
            return True
        i = data[0]
    return False
