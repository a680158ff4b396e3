"""Rule ``scale-buffer``: a scale on the stream that lives in a buffer and holds garbage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from skipway.diagnostics.finding import Finding

__all__ = ["scale_buffer"]

# Scales of residual streams that anybody published lie between 1e-6 (LayerScale) and some tens (embedding scales).
_SMALLEST: Final = 1e-8
_LARGEST: Final = 1e4
_PROGRAM: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(16), nn.Linear(16, 16)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x):
        return x + self.scale * self.branch(self.norm(x))


with torch.device("meta"):
    model = nn.Sequential(*[Block() for _ in range(4)])
model.to_empty(device="cpu")
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    if hasattr(module, "scale"):
        module.scale.fill_(GARBAGE)
batch = torch.randn(4, 16)
"""


def _scales(evidence: Evidence) -> Iterator[int]:
    """Products on a shortcut or at the end of a branch with something that is neither data nor a parameter."""
    nodes = evidence.graph.nodes
    for unit in evidence.described:
        for i in dict.fromkeys((*unit.shortcut_nodes, *(j for tail in unit.tails for j in tail.nodes))):
            node = nodes[i]
            others = [nodes[j] for j in node.inputs if not nodes[j].data]
            if node.op in ops.MULTIPLY and node.source == node.op and others and not any(o.params for o in others):
                yield i


def _size(index: int) -> Want:
    def reduce(_result: torch.Tensor, operands: Sequence[torch.Tensor]) -> float:
        smallest = min(operands, key=lambda t: t.numel())
        return float(smallest.detach().double().abs().max()) if smallest.numel() else 0.0

    return Want(node=index, name="scale", reduce=reduce)


@rule(
    "scale-buffer",
    severity="error",
    summary="A scale of a branch or shortcut is held in a buffer whose value is garbage.",
    explanation="The stream is multiplied by a buffer, and the value read there is no scale: not finite, zero, or far"
    " outside of what a residual scale can be. It happens when a model is built on the meta device and made real by"
    " to_empty(): parameters are initialised or loaded afterwards, a buffer that is not persistent is neither.",
    fix="register the buffer as persistent, or compute it again in reset_parameters(); a plain Python float needs"
    " neither",
    source="allenai/OLMo-core PR 698",
    faulty=_PROGRAM.replace("GARBAGE", "float('1e30')"),
    healthy=_PROGRAM.replace("GARBAGE", "0.5"),
    wants=lambda evidence: map(_size, _scales(evidence)),
    explains=("non-finite", "stream-growth", "branch-scale", "gradient-vanishing", "gradient-exploding"),
)
def scale_buffer(evidence: Evidence) -> Iterator[Finding]:
    """Fire for a constant factor on the stream whose value is no scale, and that a buffer holds."""
    buffers = {n: b for n, b in evidence.model.named_buffers() if b.is_floating_point() and b.numel()}
    for i in _scales(evidence):
        value = evidence.seen.get((i, "scale"))
        if value is None or (math.isfinite(value) and _SMALLEST <= value <= _LARGEST):
            continue
        names = [n for n, b in buffers.items() if _holds(b, value)]
        if not names:
            continue
        path = evidence.graph.calls[evidence.graph.nodes[i].call].path
        name = next((n for n in names if n.startswith(path)), names[0])
        also = f", and {len(names) - 1} buffers more hold the same" if len(names) > 1 else ""
        yield RULES["scale-buffer"].finding(
            path, f"the stream is multiplied by {name}, whose value is {value:.3g}{also}", {"value": value}
        )
        return


def _holds(buffer: torch.Tensor, value: float) -> bool:
    if buffer.device.type == "meta":
        return False
    largest = float(buffer.detach().double().abs().max())
    return largest == value or (math.isnan(largest) and math.isnan(value))
