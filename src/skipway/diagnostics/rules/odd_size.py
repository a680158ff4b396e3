"""Rule ``odd-size``: one side of a join rounds odd sizes down, the other up: it fails at some sizes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.diagnostics.rules._joins import called
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._shapes import misfit
from skipway.diagnostics.rules.missing_projection import operands_at_fault, unfit
from skipway.trace import ops
from skipway.trace.batch import Call, call_arguments, tensors_of
from skipway.units.links import Links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding
    from skipway.units.describe import Described

__all__ = ["odd_size"]

_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.shortcut = nn.AvgPool2d(2, stride=2)

    def forward(self, x):
        return self.shortcut(x) + self.branch(x)


model = nn.Sequential(nn.Conv2d(3, 8, 1), Block())
batch = torch.randn(2, 3, 8, 8)
"""
_FIX: Final = "ceil_mode=True for the pooling, or a strided 1×1 convolution in its place"
# One run for each place where the stream is halved; a net has about four of them.
_MOST_RUNS: Final = 4


@rule(
    "odd-size",
    severity="warning",
    summary="A pooled shortcut rounds odd sizes down where the strided branch rounds up: it fails at those sizes.",
    explanation="Where one side of a unit pools or slices and the other has a strided convolution, the model runs once"
    " more on a batch that is cropped so that the unit's x has an odd size. If the join then raises, those sizes are"
    " named. Pooling with ceil_mode=True rounds up and is left alone.",
    fix=_FIX,
    source="glasses issue 236; Res2Net issue 10",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("nn.AvgPool2d(2, stride=2)", "nn.AvgPool2d(2, stride=2, ceil_mode=True)"),
)
def odd_size(evidence: Evidence) -> Iterator[Finding]:
    """Fire where a run on an odd size raises at the join, or the inspected batch itself did."""
    if evidence.trace.error is not None:
        yield from _at_this_size(evidence)
        return
    if evidence.lab is None:
        return
    seen: set[tuple[int, ...]] = set()
    for k, unit in enumerate(evidence.described):
        x = evidence.graph.nodes[unit.candidate.x].shape
        if x[2:] in seen or len(seen) >= _MOST_RUNS or not _rounds_differently(unit, evidence):
            continue
        smaller = _cropped(evidence.lab.batch, x)
        if smaller is None:
            continue
        seen.add(x[2:])
        found = _raises(evidence, smaller)
        if found is not None:  # one place is enough: the same blocks follow
            sizes, shortcut, branch = found
            yield _finding(evidence.units[k].path, sizes, shortcut, branch)
            return


def _finding(path: str, sizes: str, shortcut: str, branch: str) -> Finding:
    return RULES["odd-size"].finding(
        path,
        f"{called(path)} fails on inputs of {sizes}: the shortcut is then {shortcut}, the branch {branch}",
        {"fails_at_input_size": sizes, "shortcut_shape": shortcut, "branch_shape": branch},
        fix=f"in {called(path)}: {_FIX}",
    )


def _at_this_size(evidence: Evidence) -> Iterator[Finding]:
    pair, raised = operands_at_fault(evidence), evidence.trace.raised
    if pair is None or raised is None:
        return
    links = evidence.found.links
    shortcut, branch = (links.nodes[i].shape for i in pair)
    kind = misfit(shortcut, branch, pair[1], links)
    if kind is None or not kind.rounds:
        return
    path = evidence.graph.calls[raised.call].path
    sizes = next((list(n.shape[2:]) for n in evidence.graph.nodes if n.op == "input" and len(n.shape) > 2), [])
    yield _finding(path, _by(sizes), str(list(shortcut)), str(list(branch)))


def _rounds_differently(unit: Described, evidence: Evidence) -> bool:
    """Whether one side halves by pooling without ceil_mode or by a slice, and the other by a strided convolution."""
    nodes = evidence.graph.nodes
    x = nodes[unit.candidate.x].shape
    end = nodes[unit.candidate.join].shape
    if len(x) not in (3, 4, 5) or len(x) != len(end) or not all(1 < b < a for a, b in zip(x[2:], end[2:], strict=True)):
        return False
    if any(a % 2 for a in x[2:]):  # it was run on an odd size, and fits
        return False
    sides = (unit.shortcut_nodes, unit.candidate.region)
    floors = [any(_pools(i, evidence) for i in side) for side in sides]
    ceils = [any(nodes[i].op in ops.CONVOLUTION and _strided(nodes[i].attrs.get("stride")) for i in s) for s in sides]
    slices = any(nodes[i].op == "slice" and (nodes[i].attrs.get("step") or 1) > 1 for i in unit.shortcut_nodes)
    return (floors[0] and ceils[1]) or (floors[1] and (ceils[0] or slices)) or (slices and ceils[1])


def _pools(i: int, evidence: Evidence) -> bool:
    node = evidence.graph.nodes[i]
    shrinks = node.op in ops.POOL and bool(node.inputs) and "adaptive" not in node.op and "upsample" not in node.op
    return shrinks and not node.attrs.get("ceil_mode") and node.shape != evidence.graph.nodes[node.inputs[0]].shape


def _strided(stride: object) -> bool:
    return any(s > 1 for s in stride) if isinstance(stride, (list, tuple)) else isinstance(stride, int) and stride > 1


def _cropped(batch: Any, x: tuple[int, ...]) -> Call | None:
    """The batch cropped so that a stream of shape `x` loses one in each spatial dimension; None if unclear."""
    args, kwargs = call_arguments(batch)
    spatial = [t for t in tensors_of((args, kwargs)) if t.is_floating_point() and t.dim() == len(x)]
    if not spatial:
        return None
    size = tuple(spatial[0].shape[2:])
    if any(n % m or n // m < 1 for n, m in zip(size, x[2:], strict=True)):
        return None
    target = tuple(n - n // m for n, m in zip(size, x[2:], strict=True))
    if min(target) < 1:
        return None

    def crop(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() == len(x) and tuple(value.shape[2:]) == size:
            for d, n in enumerate(target):
                value = value.narrow(d + 2, 0, n)
            return value.contiguous()
        if isinstance(value, Mapping):
            return {k: crop(v) for k, v in value.items()}
        return type(value)(map(crop, value)) if type(value) in (list, tuple) else value

    return Call(crop(tuple(args)), crop(dict(kwargs)))


def _raises(evidence: Evidence, batch: Call) -> tuple[str, str, str] | None:
    """Size of the input and shapes of shortcut and branch where the run on `batch` raises at a join."""
    if evidence.lab is None:
        return None
    try:
        trace = evidence.lab.trace("odd-size", batch=batch, partial=True)
    except Exception:  # noqa: BLE001  # another size may be refused for other reasons
        return None
    if trace.error is None or trace.raised is None:
        return None
    links = Links(trace.graph)
    pair = unfit(trace.raised.op, list(trace.raised.inputs), trace.raised.attrs.get("dim"), links)
    if pair is None:
        return None
    size = next(list(t.shape[2:]) for t in tensors_of((batch.args, batch.kwargs)) if t.dim() > 2)
    shortcut, branch = (str(list(links.nodes[i].shape)) for i in pair)
    return _by(size), shortcut, branch


def _by(size: list[int]) -> str:
    return "×".join(map(str, size))
