"""Rule ``scale-buffer``: a scale on the stream that lives in a buffer and holds garbage."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from torch import nn

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from skipway.diagnostics.finding import Finding
    from skipway.trace.graph import Node

__all__ = ["scale_buffer"]

# Scales of residual streams that anybody published lie between 1e-6 (LayerScale) and some tens (embedding scales).
_SMALLEST: Final = 1e-8
_LARGEST: Final = 1e4
_ROUNDED: Final = 1e-2  # a cast to bfloat16 keeps 8 bits
_LONGEST: Final = 65_536  # entries: scales are single numbers or have one entry for a channel; tables are no scales
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


def _garbage(evidence: Evidence) -> dict[str, float]:
    """Buffers that may be scales, and whose value can be none, with their largest entry."""
    return evidence.once("garbage in buffers", lambda: _read(evidence.modules) if _is_suspicious(evidence) else {})


def _is_suspicious(evidence: Evidence) -> bool:
    """Whether anything is multiplied by what a buffer may have held: hardly a model's buffers need be read."""
    return any(
        _is_constant_factor(node, evidence) or (node.attrs and any(_odd_numbers(node))) for node in evidence.graph.nodes
    )


def _is_constant_factor(node: Node, evidence: Evidence) -> bool:
    """Whether an operation multiplies by something that is neither data nor a parameter."""
    if node.op not in ops.MULTIPLY or not node.source:
        return False
    others = [other for j in node.inputs if not (other := evidence.graph.nodes[j]).data]
    return bool(others) and not any(o.params for o in others)


def _odd_numbers(node: Node) -> Iterator[float]:
    """Numbers that an operation multiplies by, and that are no scales."""
    for key in ("scalar", "alpha"):
        value = node.attrs.get(key)
        if isinstance(value, float) and value and not _may_be(abs(value)):  # a plain 0 may come from anywhere
            yield abs(value)


def _read(modules: Sequence[tuple[str, nn.Module]]) -> dict[str, float]:
    found = {}
    for path, module in modules:
        if isinstance(module, nn.modules.batchnorm._NormBase):  # noqa: SLF001  # their base class
            continue
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and 0 < buffer.numel() <= _LONGEST and buffer.device.type != "meta":
                value = float(buffer.detach().double().abs().max())
                if not _may_be(value):
                    found[f"{path}.{name}" if path else name] = value
    return found


def _may_be(value: float) -> bool:
    return math.isfinite(value) and _SMALLEST <= value <= _LARGEST


def _scales(evidence: Evidence) -> Iterator[int]:
    """Products of data with something that is neither data nor a parameter; none where all buffers are sound."""
    if not _garbage(evidence):
        return
    signal = _signal(evidence)
    for node in evidence.graph.nodes:
        if signal[node.id] and _is_constant_factor(node, evidence):
            yield node.id


def _signal(evidence: Evidence) -> list[bool]:
    """Which nodes lead to an output and hold an activation: something behind a weight, or within a unit.

    A mask that the caller gives is none, however large the number that it is multiplied by.
    """
    links = evidence.found.links
    within = {i for d in evidence.described for i in (*d.candidate.region, *d.shortcut_nodes, *d.after_nodes)}
    found = [False] * len(links.nodes)
    for node in links.nodes:
        if node.data and node.floating:
            starts = node.op in ops.SUBSTANTIAL or node.id in within
            found[node.id] = starts or any(found[j] for j in node.inputs)
    return [value and alive for value, alive in zip(found, links.alive, strict=True)]


def _size(index: int) -> Want:
    def reduce(_result: torch.Tensor, operands: Sequence[torch.Tensor]) -> float:
        smallest = min(operands, key=lambda t: t.numel())
        return float(smallest.detach().double().abs().max()) if smallest.numel() else 0.0

    return Want(node=index, name="scale", reduce=reduce)


@rule(
    "scale-buffer",
    severity="error",
    summary="A scale of the signal is held in a buffer whose value is garbage.",
    explanation="The signal (a branch, a shortcut, an embedding) is multiplied by a buffer, and the value read there is"
    " no scale: not finite, zero, or far outside of what a scale can be. It happens when a model is built on the meta"
    " device and made real by to_empty(): parameters are initialised or loaded afterwards, a buffer that is not"
    " persistent is neither. A zero is a warning: a branch that is faded in starts so. Masks that are added may be"
    " infinite.",
    fix="register the buffer as persistent, or compute it again in reset_parameters(); a plain Python float needs"
    " neither",
    source="allenai/OLMo-core PR 698",
    faulty=_PROGRAM.replace("GARBAGE", "float('1e30')"),
    healthy=_PROGRAM.replace("GARBAGE", "0.5"),
    wants=lambda evidence: map(_size, _scales(evidence)),
    explains=("non-finite", "stream-growth", "branch-scale", "gradient-vanishing", "gradient-exploding"),
)
def scale_buffer(evidence: Evidence) -> Iterator[Finding]:
    """Fire for a constant factor of the signal whose value is no scale, and that a buffer holds."""
    garbage = _garbage(evidence)
    if not garbage:
        return
    places = list(_places(evidence, garbage))
    if not places:
        return
    path, name, value, read = min(places, key=lambda p: (not p[3], p[2] == 0))  # the gravest; NaN is not 0
    names = {p[1] for p in places}
    more = f" \N{MULTIPLICATION SIGN}{len(names)}" if len(names) > 1 else ""
    shut = value == 0
    yield RULES["scale-buffer"].finding(
        path,
        f"the signal is multiplied by {name}, whose value is {value:.3g}{more}"
        + ("" if read else " (read of the buffer, not of a run)")
        + (": what it scales is shut" if shut else ""),
        {"value": value, "buffers": len(names)},
        severity="error" if read and not shut else "warning",
    )


def _places(evidence: Evidence, garbage: Mapping[str, float]) -> Iterator[tuple[str, str, float, bool]]:
    """Module path, buffer, value, and whether it was read in a run."""
    graph, signal = evidence.graph, _signal(evidence)
    for i in _scales(evidence):
        path = graph.calls[graph.nodes[i].call].path
        value = evidence.seen.get((i, "scale"))
        if value is None and not evidence.seen:
            own = [n for n in garbage if n.rpartition(".")[0] == path]
            if own:
                yield path, own[0], garbage[own[0]], False
        elif value is not None and not _may_be(value):
            name = _named(value, path, garbage)
            if name:
                yield path, name, value, True
    for node in graph.nodes:  # a number that Python read from a buffer
        for value in _odd_numbers(node) if signal[node.id] else ():
            name = next((n for n in garbage if _is_close(value, garbage[n])), None)
            if name:
                yield graph.calls[node.call].path, name, value, True


def _named(value: float, path: str, garbage: Mapping[str, float]) -> str | None:
    """The buffer that holds a value: one of the module itself, by preference."""
    by_distance = sorted(garbage, key=lambda n: n.rpartition(".")[0] != path)
    exact = next((n for n in by_distance if _is_close(value, garbage[n])), None)
    # A value made of a buffer (its exponential, a cast that overflows) is another one.
    return exact or next((n for n in by_distance if n.rpartition(".")[0] == path), None)


def _is_close(value: float, held: float) -> bool:
    if math.isnan(value) or math.isnan(held):
        return math.isnan(value) and math.isnan(held)
    return value == held or (math.isfinite(value) and abs(value - held) <= _ROUNDED * abs(held))
