"""Rules ``self-add`` and ``double-add``: a sum that holds one and the same stream twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._joins import called, copy_of, is_sum, path_of, sums, times, weights_between
from skipway.diagnostics.rules._overwritten import rewritten
from skipway.diagnostics.rules._rule import RULES, Evidence, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding

__all__ = ["double_add", "self_add"]

# The sum is read in the precision of the model: 2x is exact, the sum of three terms is rounded.
_EXACT: Final = 1e-6
_TWICE: Final = 0.01
# An outer add around more units than a block usually holds may be meant as a long skip.
_MOST_UNITS: Final = 4
# A block adds its input once or, by mistake, twice; a recurrence of four steps adds the one input four times.
_RECURRENCE: Final = 4


def _program(unit: str, outer: str = "x") -> str:
    return f"""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

    def forward(self, x):
        return {unit}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = {outer}
        return x


model = Model()
batch = torch.randn(4, 16)
"""


# ---- self-add


def _self_adds(evidence: Evidence) -> list[int]:
    """Sums of a value and itself, behind weights or before them."""
    links = evidence.found.links
    found = []
    for node in sums(evidence):
        a, b = (copy_of(i, links, dropped=True) for i in node.inputs)
        if a != b or links.nodes[a].shape != node.shape or a in _injected(evidence):
            continue
        if not _is_part_of_double(node.id, a, evidence):
            found.append(node.id)
    return found


def _injected(evidence: Evidence) -> set[int]:
    """Values that a recurrence takes up again and again: each of many sums adds one to what came of the sum before."""
    return evidence.once("injected values", lambda: _find_injected(evidence))


def _find_injected(evidence: Evidence) -> set[int]:
    links = evidence.found.links
    taken: dict[int, list[int]] = {}
    for node in sums(evidence):
        for i in node.inputs:
            x = copy_of(i, links)
            before = taken.setdefault(x, [])
            if not before or (links.descends(node.id, before[-1]) and weights_between(before[-1], node.id, links) > 0):
                before.append(node.id)
    return {x for x, joins in taken.items() if len(joins) >= _RECURRENCE}


def _is_part_of_double(join: int, x: int, evidence: Evidence) -> bool:
    """Whether the sum only goes into ``(x + x) + F(x)``."""
    links = evidence.found.links
    readers = links.readers(join)
    if len(readers) != 1 or -1 in readers:
        return False
    outer = links.nodes[next(iter(readers))]
    return is_sum(outer, links) and any(
        links.descends(i, x) and copy_of(i, links) != join and not links.descends(i, join) for i in outer.inputs
    )


def _beyond_twice(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """How far a sum is from twice its first operand, and so how far the operands are from each other, relatively."""
    x = operands[0].double() if operands[0].device.type != "mps" else operands[0]
    beyond: torch.Tensor = (result - 2 * x).norm() / (2 * x).norm().clamp_min(1e-30)
    return beyond


def _want_self_adds(evidence: Evidence) -> Iterator[Want]:
    for i in _self_adds(evidence):
        yield Want(node=i, name="beyond 2x", reduce=_beyond_twice)


@rule(
    "self-add",
    severity="error",
    summary="Both operands of an add are the same tensor.",
    explanation="x + x is no residual unit: the branch is missing, and the stream doubles at every such add. The sum is"
    " read in a further run and compared with 2x. Twice a tensor in another shape or order (x + xᵀ) is something else,"
    " and so are an in-place branch that overwrites x (shortcut-overwritten) and a stream that is added again beside"
    " its branch (double-add).",
    fix="add the branch to the stream: x + F(x)",
    source="BitNet issue 32",
    faulty=_program("(h := self.branch(x)) + h", "block(x)"),
    healthy=_program("self.branch(x) + x", "block(x)"),
    wants=_want_self_adds,
    explains=("stream-growth", "gradient-exploding", "non-finite"),
)
def self_add(evidence: Evidence) -> Iterator[Finding]:
    """Fire for sums of a tensor and itself, once for the model."""
    links = evidence.found.links
    found = [i for i in _self_adds(evidence) if not any(w in rewritten(evidence) for w in links.nodes[i].inputs)]
    if not found:
        return
    far = [evidence.seen.get((i, "beyond 2x")) for i in found]
    measured = far[0] is not None and (far[0] <= _EXACT or _with_dropout(found[0], evidence))
    path = path_of(found[0], evidence)
    shape = list(links.nodes[found[0]].shape)
    numbers: dict[str, float | int | str] = {"adds": len(found), "shape": str(shape), "growth_per_add": 2}
    if far[0] is not None:
        numbers["relative_distance_from_2x"] = far[0]
    yield RULES["self-add"].finding(
        path,
        f"both operands of the add in {called(path)} are one tensor {shape}: it doubles the stream and adds no branch"
        f"{times(len(found))}" + ("" if measured else " (not measured)"),
        numbers,
        severity="error" if measured else "warning",
        fix=f"in {called(path)} add the branch's output to the stream that the branch read: x + F(x) instead of x + x",
    )


def _with_dropout(join: int, evidence: Evidence) -> bool:
    links = evidence.found.links
    return any(copy_of(i, links) != copy_of(i, links, dropped=True) for i in links.nodes[join].inputs)


# ---- double-add


@dataclass
class _Twice:
    """A sum that holds `x` twice: the adds on the ways from x, and what was seen of them."""

    join: int
    x: int
    inner: int
    adds: list[int]
    rest: list[torch.Tensor] = field(default_factory=list)
    known: torch.Tensor | None = None

    @property
    def name(self) -> str:
        return f"times x of {self.x}"


def _doubles(evidence: Evidence) -> list[_Twice]:
    """Sums to which a stream leads by two ways of plain adds; the ancestors by plain adds are kept as bit sets."""
    links = evidence.found.links
    streams = {copy_of(c.base, links) for c in evidence.found.candidates}  # 2x + F(x) is not proved as x + F(x)
    by_adds: dict[int, int] = {}
    found = []
    for node in sums(evidence):
        a, b = (copy_of(i, links) for i in node.inputs)
        first, second = (by_adds.get(i, 0) | 1 << i for i in (a, b))
        shared = first & second
        by_adds[node.id] = first | second
        if not shared or (a == b and not _is_part_of_double(node.id, a, evidence)):
            continue
        x = shared.bit_length() - 1
        if a == b:
            outer = links.nodes[next(iter(links.readers(node.id)))]
            found.append(_Twice(outer.id, x, node.id, [node.id, outer.id]))
            continue
        if x not in streams or links.nodes[x].shape != node.shape or x in _injected(evidence):
            continue
        ways = [i for i in _members(by_adds[node.id] | 1 << node.id, x) if i == node.id or by_adds.get(i, 0) >> x & 1]
        inner = next((i for i in ways if i != node.id), node.id)
        if inner != node.id:
            found.append(_Twice(node.id, x, inner, ways))
    return found


def _members(bits: int, above: int) -> list[int]:
    return [i for i in range(above + 1, bits.bit_length()) if bits >> i & 1]


def _keep_rest(
    twice: _Twice, add: int, evidence: Evidence, result: torch.Tensor, operands: Sequence[torch.Tensor]
) -> float:
    """Keep what an add on the way brings beside x; at the last one say how often x is in the sum."""
    links = evidence.found.links
    node = links.nodes[add]
    for i, tensor in zip(node.inputs, operands, strict=False):
        source = copy_of(i, links)
        if source == twice.x:
            twice.known = tensor.detach().clone()
        elif source not in twice.adds:
            twice.rest.append(tensor.detach().clone())
    if add != twice.join or twice.known is None:
        return float("nan")
    x = twice.known.double() if twice.known.device.type != "mps" else twice.known
    left = result.to(x.dtype) - sum((r.to(x.dtype) for r in twice.rest), torch.zeros_like(x))
    return float((left * x).sum() / x.square().sum().clamp_min(1e-30))


def _want_doubles(evidence: Evidence) -> Iterator[Want]:
    for twice in _doubles(evidence)[:1]:  # all others repeat it
        for add in twice.adds:
            yield Want(node=add, name=twice.name, reduce=partial(_keep_rest, twice, add, evidence))


@rule(
    "double-add",
    severity="error",
    summary="The same stream is added twice.",
    explanation="From x to the sum lead two ways of plain adds, as where a block adds its input and the caller adds it"
    " again: the result is 2x + F(x). Everything else that the sum holds is subtracted in a further run, and 2x is what"
    " is left. Ways through weights, norms or factors do not count, so a long skip around a body that ends in a"
    " convolution is left alone; around more than four units it may be meant even so, and is a warning. An input that"
    " is added anew at every step of a recurrence (deep equilibrium, looped transformers) is meant.",
    fix="drop one of the two adds",
    source="darknet-pytorch issue 2",
    faulty=_program("x + self.branch(x)", "x + block(x)"),
    healthy=_program("x + self.branch(x)", "block(x)"),
    wants=_want_doubles,
    explains=("stream-growth", "gradient-exploding", "non-finite"),
)
def double_add(evidence: Evidence) -> Iterator[Finding]:
    """Fire for sums to which a stream leads by two ways, once for the model."""
    found = _doubles(evidence)
    if not found:
        return
    first = found[0]
    links = evidence.found.links
    share = evidence.seen.get((first.join, first.name))
    measured = share is not None and abs(share - 2) < _TWICE
    jumped = sum(c.join in first.adds and c.join != first.join for c in evidence.found.candidates)
    inner, outer = path_of(first.inner, evidence), path_of(first.join, evidence)
    numbers: dict[str, float | int | str] = {
        "sums": len(found), "inner_add": called(inner), "outer_add": called(outer),
        "units_between": max(jumped, 1), "shape": str(list(links.nodes[first.x].shape)),
    }  # fmt: skip
    if share is not None:
        numbers["x_in_the_sum"] = share
    long = jumped > _MOST_UNITS
    yield RULES["double-add"].finding(
        outer or inner,
        f"the stream is added in {called(inner)} and once more in {called(outer)}: the sum holds it twice, 2x + F(x)"
        f"{times(len(found))}" + ("" if measured else " (not measured)"),
        numbers,
        severity="error" if measured and not long else "warning",
        fix=f"drop one of the two: the add in {called(inner)} or the one in {called(outer)}",
    )
