"""Rule ``inplace-add``: an in-place write destroys a value that the backward run needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._joins import apart, called, path_of, times
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.units.links import members

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding

__all__ = ["inplace_add"]

_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

    def forward(self, x):
        x += self.branch(x)
        return x


model = nn.Sequential(nn.Linear(16, 16), Block(), Block())
batch = torch.randn(4, 16)
"""
_SAYS: Final = ("inplace operation", "in-place operation", "modified inplace", "modified in-place")
# Autograd keeps the result of these; of the others that it keeps anything of, the operands.
_KEEP_RESULT: Final = frozenset(
    {"relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "softmax", "safe_softmax", "log_softmax", "selu", "elu",
     "reciprocal", "hardsigmoid", "max_pool2d_with_indices"}
)  # fmt: skip
_KEEP_NOTHING: Final = (
    ops.VIEW | ops.SLICE | ops.ADD | ops.DROPOUT | ops.PAD | frozenset({"neg", "cat", "stack", "sum", "mean"})
)
# A part of a tensor counts its writes with the whole.
_SAME_MEMORY: Final = (ops.VIEW | ops.SLICE) - {"clone", "index", "to_copy", "contiguous"}
# Each place is tried alone only where they are few: the runs are like the model's own.
_MOST_SINGLE_RUNS: Final = 4


@dataclass(frozen=True, slots=True)
class _Destroyed:
    """A write, and the operation that had kept what it destroys."""

    write: int
    keeper: int


@rule(
    "inplace-add",
    severity="error",
    summary="An in-place write destroys a value that the backward run needs: it raises.",
    explanation="Autograd keeps operands (of convolutions, products, norms, GELU) or results (of ReLU, sigmoid,"
    " softmax). Where an in-place write such as x += F(x) goes to one of them, the backward run is made; if it raises,"
    " it is made again with those writes going to copies. In-place writes to what nobody keeps (relu_ behind a"
    " BatchNorm, += on its output) are healthy. Without a backward run it is a warning.",
    fix="out of place: x = x + F(x)",
    source="discuss.pytorch.org 10724 and 11976",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("x += self.branch(x)", "x = x + self.branch(x)"),
)
def inplace_add(evidence: Evidence) -> Iterator[Finding]:
    """Fire where the backward run raises over an in-place write, once for the model."""
    destroyed = list(_destroyed(evidence))
    said = evidence.backward_error if any(s in evidence.backward_error for s in _SAYS) else ""
    if not destroyed and not said:
        return
    if evidence.lab is None or evidence.trace.error is not None:
        # Without parameters that train nothing is kept, and in eval mode nobody may ask for a gradient.
        if evidence.model.training and any(p.requires_grad for p in evidence.model.parameters()):
            yield _finding(evidence, destroyed, "", mended=False)
        return
    said = said or _raised(evidence, ())
    if not said:
        return
    culprits, mended = _culprits(evidence, destroyed)
    yield _finding(evidence, culprits, said, mended=mended)


def _destroyed(evidence: Evidence) -> Iterator[_Destroyed]:
    """In-place writes to what an earlier operation keeps for the backward run."""
    links = evidence.found.links
    for write, before in sorted(evidence.graph.overwrites.items()):
        if not links.is_data(before):
            continue
        keeper = _keeper(write, before, evidence)
        if keeper is not None:
            yield _Destroyed(write, keeper)


def _keeper(write: int, before: int, evidence: Evidence) -> int | None:
    """The last operation before a write that keeps the value that the write destroys."""
    links, nodes = evidence.found.links, evidence.graph.nodes
    source = before
    while nodes[source].op in _SAME_MEMORY and len(links.data_inputs(nodes[source])) == 1:
        source = links.data_inputs(nodes[source])[0]
    if nodes[source].op in _KEEP_RESULT:
        return source if links.alive[source] and _needs_gradient(source, evidence) else None
    found = None
    pending, seen = [source], {source}
    while pending:
        for c in links.consumers[pending.pop()]:
            node = nodes[c]
            if c >= write or c in seen or not node.floating:
                continue
            seen.add(c)
            if node.op in _SAME_MEMORY:
                pending.append(c)
            elif c not in evidence.graph.overwrites and _keeps(c, evidence):
                found = c if found is None else max(found, c)
    return found


def _keeps(i: int, evidence: Evidence) -> bool:
    """Whether an operation keeps its operands: not if what it multiplies them by needs no gradient."""
    node = evidence.graph.nodes[i]
    if not evidence.found.links.alive[i] or node.op in _KEEP_NOTHING or node.op in _KEEP_RESULT:
        return False
    if node.op in ops.WORKING or node.op in ops.MULTIPLY:
        return len(node.inputs) > 1 and _needs_gradient(i, evidence)
    return True


def _needs_gradient(i: int, evidence: Evidence) -> bool:
    """Whether a parameter takes part, so that autograd has something to keep."""
    links, nodes = evidence.found.links, evidence.graph.nodes
    return any(
        not nodes[j].data and nodes[j].params for k in [i, *members(links.ancestors[i])] for j in nodes[k].inputs
    )


def _raised(evidence: Evidence, writes: Sequence[int]) -> str:
    """What a backward run to all parameters says of in-place writes, with some going to copies; empty for nothing."""
    if evidence.lab is None:
        return ""
    around = apart(evidence.model, evidence.graph, writes) if writes else None
    try:
        evidence.lab.gradients("inplace-add", around=around)
    except RuntimeError as error:
        return str(error) if any(s in str(error) for s in _SAYS) else ""
    except Exception:  # noqa: BLE001  # a loss or a model that fails otherwise says nothing of writes
        return ""
    return ""


def _culprits(evidence: Evidence, destroyed: list[_Destroyed]) -> tuple[list[_Destroyed], bool]:
    """The writes that make the backward run raise, and whether it passes with them out of place."""
    if not destroyed or _raised(evidence, [d.write for d in destroyed]):
        return destroyed, False
    if 1 < len(destroyed) <= _MOST_SINGLE_RUNS:
        needed = [
            d for d in destroyed if _raised(evidence, [other.write for other in destroyed if other is not d])
        ]  # fmt: skip
        return needed or destroyed, True
    return destroyed, True


def _finding(evidence: Evidence, culprits: list[_Destroyed], said: str, *, mended: bool) -> Finding:
    known = RULES["inplace-add"]
    numbers: dict[str, float | int | str] = {"writes": len(culprits)}
    if said:
        numbers["backward_run_raised"] = said.split(": [", maxsplit=1)[0].splitlines()[0]
        numbers["passes_out_of_place"] = "yes" if mended else "not shown"
    if not culprits:
        return known.finding("", "the backward run raises over an in-place write, which was not found", numbers)
    first = culprits[0]
    nodes = evidence.graph.nodes
    node, keeper = nodes[first.write], nodes[first.keeper]
    place, kept_in = path_of(first.write, evidence), path_of(first.keeper, evidence)
    numbers.update(
        {"operation": f"{node.op}_", "kept_by": f"{keeper.op} in {called(kept_in)}", "shape": str(list(node.shape))}
    )
    joins = node.op in ops.ADD
    end = ": the backward run raises" if said else " (no backward run was made)"
    what = "x += …" if joins else f"{node.op}_"
    return known.finding(
        place,
        f"{what} in {called(place)} destroys what {keeper.op} in {called(kept_in)} keeps"
        f" for the backward run{times(len(culprits))}{end}",
        numbers,
        severity="error" if said else "warning",
        fix=f"in {called(place)} write x = x + F(x) instead of x += F(x)"
        if joins
        else f"in {called(place)} use the out-of-place {node.op} (inplace=False)",
    )
