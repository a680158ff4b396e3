"""Rule ``missing-projection``: shortcut and branch do not fit, and the model raises at the join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._joins import called, weights_between
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._shapes import broadcast, misfit
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding
    from skipway.units.links import Links

__all__ = ["missing_projection", "operands_at_fault"]

_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 1))
        self.shortcut = nn.Identity()

    def forward(self, x):
        return self.shortcut(x) + self.branch(x)


model = nn.Sequential(nn.Conv2d(3, 8, 1), Block())
batch = torch.randn(2, 3, 8, 8)
"""
_JOINS: Final = ops.ADD | ops.MULTIPLY | ops.ADDS_PRODUCT | {"cat", "stack", "lerp", "maximum"}


@rule(
    "missing-projection",
    severity="error",
    summary="Shortcut and branch have shapes that do not fit: the model raises where they join.",
    explanation="The run ended in an add (or a concatenation) whose operands do not broadcast, and both come from one"
    " tensor. From the two shapes follow stride and channels of the layer that the shortcut lacks. Where the sizes"
    " differ by one, one side rounds up and the other down (odd-size).",
    fix="a projection on the shortcut: a 1×1 convolution with the branch's stride, or a linear layer",
    source="darknet issue 3809; pytorch-cpn issue 45; He et al. 2015, arXiv 1512.03385, option B",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("nn.Identity()", "nn.Conv2d(8, 16, kernel_size=1, stride=2, bias=False)"),
)
def missing_projection(evidence: Evidence) -> Iterator[Finding]:
    """Fire where the model raised at a join of a shortcut and its branch."""
    pair = operands_at_fault(evidence)
    raised = evidence.trace.raised
    if pair is None or raised is None:
        return
    links = evidence.found.links
    shortcut, branch = (links.nodes[i].shape for i in pair)
    path = evidence.graph.calls[raised.call].path
    numbers: dict[str, float | int | str] = {
        "operation": raised.op, "shortcut_shape": str(list(shortcut)), "branch_shape": str(list(branch)),
    }  # fmt: skip
    kind = misfit(shortcut, branch, pair[1], links)
    fix = f"make the shortcut {list(shortcut)} the branch's {list(branch)}"
    if kind is not None:
        numbers["shortcut_channels"], numbers["branch_channels"] = kind.channels
        if kind.stride:
            numbers["stride"] = kind.stride
            fix = f"put {kind.layer()} on the shortcut in {called(path)}: it takes {list(shortcut)} to {list(branch)}"
        elif kind.rounds:
            fix = (
                f"in {called(path)} one side rounds its size up and the other down: ceil_mode=True for the pooling,"
                " or a strided 1×1 convolution in its place"
            )
        else:
            fix = (
                f"in {called(path)} make both {list(branch[2:])} wide: padding=kernel_size // 2 in the branch's"
                " convolutions, or a crop of the shortcut"
            )
    yield RULES["missing-projection"].finding(
        path,
        f"the {raised.op} in {called(path)} raises: the shortcut is {list(shortcut)}, the branch {list(branch)}",
        numbers,
        fix=fix,
    )


def operands_at_fault(evidence: Evidence) -> tuple[int, int] | None:
    """Shortcut and branch of the join that raised, if it was one and its operands do not fit."""
    raised = evidence.trace.raised
    if evidence.trace.error is None or raised is None or raised.op not in _JOINS:
        return None
    return unfit(raised.op, list(raised.inputs), raised.attrs.get("dim"), evidence.found.links)


def unfit(op: str, inputs: list[int], dim: object, links: Links) -> tuple[int, int] | None:
    """Shortcut and branch among operands that come from one tensor and do not fit."""
    operands = [i for i in inputs if links.nodes[i].floating and links.nodes[i].data]
    for k, a in enumerate(operands):
        for b in operands[k + 1 :]:
            if _fits(op, links.nodes[a].shape, links.nodes[b].shape, dim):
                continue
            common = (links.ancestors[a] | 1 << a) & (links.ancestors[b] | 1 << b)
            if not common:
                continue
            x = common.bit_length() - 1
            first, second = (weights_between(x, i, links) if i != x else -1 for i in (a, b))
            if first == second == 0:
                continue
            return (a, b) if first <= second else (b, a)
    return None


def _fits(op: str, a: tuple[int, ...], b: tuple[int, ...], dim: object) -> bool:
    if op not in ("cat", "stack"):
        return broadcast([a, b]) is not None
    if len(a) != len(b):
        return False
    at = (dim if isinstance(dim, int) else 0) % len(a) if op == "cat" else None
    return all(p == q or d == at for d, (p, q) in enumerate(zip(a, b, strict=True)))
