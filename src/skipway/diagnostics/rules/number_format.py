"""Rules ``fp16-headroom``, ``bf16-swamping`` and ``stream-dtype``: what the stream's number format loses."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._last_steps import last_steps
from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, repeated, stream
from skipway.trace import ops
from skipway.trace.graph import PARAM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding

__all__ = ["HEADROOM", "bf16_swamping", "fp16_headroom", "stream_dtype"]

HEADROOM: Final = 4.0  # a factor that one more outlier, or one step of training, easily takes
_LOST: Final = 0.5  # at one unit
_LOST_OFTEN: Final = 0.25  # at half of the units
_JUST_BEGUN: Final = 1e-2  # a learned factor below it is meant to grow: LayerScale starts at 1e-6 to 1e-4
_UNIT: Final = "return x + self.branch(self.norm(x))"
_HALF: Final = (torch.float16, torch.bfloat16)


def _peaks(evidence: Evidence) -> Iterator[Want]:
    nodes = evidence.graph.nodes
    for unit in evidence.described:
        for i in dict.fromkeys((unit.candidate.join, unit.end, *(tail.output for tail in unit.tails))):
            if nodes[i].dtype is torch.float16 and nodes[i].source:
                yield Want(node=i, name="peak", reduce=lambda result, _: result.detach().float().abs().max())


@rule(
    "fp16-headroom",
    severity="warning",
    summary="The stream, or a branch, comes near the largest number that float16 holds.",
    explanation="The largest magnitude on the stream or in a branch's output is within a factor of four of 65,504."
    " The next larger input, or a few steps of training, make it infinite.",
    fix="run the stream in bfloat16 (same range as float32), or clamp what the branch adds before it is added",
    source="huggingface/transformers #5651, #9295",
    faulty=program(TOKENS, unit=_UNIT, depth=4).replace(
        "batch = torch.randn(4, 6, 16)",
        "model[2].down.bias.data[3] = 40_000.0\nmodel.half()\nbatch = torch.randn(4, 6, 16).half()",
    ),
    healthy=program(TOKENS, unit=_UNIT, depth=4).replace(
        "batch = torch.randn(4, 6, 16)", "model.half()\nbatch = torch.randn(4, 6, 16).half()"
    ),
    wants=_peaks,
    explains=("non-finite",),
)
def fp16_headroom(evidence: Evidence) -> Iterator[Finding]:
    """Fire for the unit at which the stream first comes near the limit."""
    limit = torch.finfo(torch.float16).max
    for unit, described in zip(evidence.units, evidence.described, strict=True):
        candidate = described.candidate
        places = [(candidate.join, "the sum"), (described.end, "the stream")]
        places += [(tail.output, "the branch") for tail in described.tails]
        peaks = [(p, what) for i, what in places if (p := evidence.seen.get((i, "peak"))) is not None]
        peak, what = max(peaks, default=(0.0, ""))
        if not peak * HEADROOM >= limit or (math.isinf(peak) and not _overflows(evidence)):
            continue
        yield RULES["fp16-headroom"].finding(
            unit.path,
            f"{what} reaches {peak:,.0f} of the {limit:,.0f} that float16 holds",
            {"peak": peak, "limit": limit, "peak_over_limit": peak / limit},
        )
        return


def _overflows(evidence: Evidence) -> bool:
    """Whether what is infinite grew too large: a division by 0 makes it in any format."""
    made = evidence.first_non_finite.get("operation", "")
    return made in (ops.WORKING | ops.BATCHED_MATMUL | ops.ADD | ops.NORM | {"mul", "to_copy", "pow", "square", "sum"})


def _lost(node: int, position: int) -> Want:
    def reduce(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor | float:
        shortcut, branch = operands[position], operands[1 - position]
        moves = branch != 0
        return ((result == shortcut) & moves).sum() / moves.sum().clamp_min(1)

    return Want(node=node, name="lost", reduce=reduce)


def _updates(evidence: Evidence) -> Iterator[Want]:
    nodes = evidence.graph.nodes
    for member in stream(evidence):
        candidate = member.described.candidate
        node, position = nodes[candidate.join], candidate.shortcut.position
        plain = node.op in ops.ADD and not node.attrs.get("fused") and len(node.inputs) == 2
        if _just_begun(member, evidence):
            continue
        if plain and node.dtype in _HALF and candidate.shortcut.add == node.id and node.attrs.get("alpha", 1) == 1:
            yield _lost(node.id, position)


def _just_begun(member: Member, evidence: Evidence) -> bool:
    """Whether a learned factor at the branch's end is still as small as it starts."""
    nodes = evidence.graph.nodes
    factor = 1.0
    for node, _ in last_steps(member.described, evidence.graph):
        if node.op in ops.MULTIPLY and any(nodes[j].taint & PARAM for j in node.inputs if not nodes[j].data):
            factor *= float(node.attrs.get("size", 1.0))
    return factor < _JUST_BEGUN


@rule(
    "bf16-swamping",
    severity="warning",
    summary="The stream is so large beside its branches that their updates are rounded away.",
    explanation="Where a branch's value is smaller than half a unit in the last place of the stream's (1/512 of it in"
    " bfloat16), the sum is the stream itself: the unit has done nothing there. Measured at each addition of a stream"
    " in 16 bits, over all entries where the branch is not zero; told where half of them are lost, or a quarter at half"
    " of the units. Branches behind a learned factor that is still small (LayerScale as it starts) are left out.",
    fix="keep the stream in float32: let only the branches run in 16 bits, x = x + branch(x.bfloat16()).float()",
    source="rounding to nearest of 8 significant bits (IEEE 754 arithmetic)",
    faulty=program(TOKENS, unit="return x + 1e-3 * self.branch(self.norm(x))", depth=4).replace(
        "batch = torch.randn(4, 6, 16)", "model.bfloat16()\nbatch = torch.randn(4, 6, 16).bfloat16()"
    ),
    healthy=program(TOKENS, unit=_UNIT, depth=4).replace(
        "batch = torch.randn(4, 6, 16)", "model.bfloat16()\nbatch = torch.randn(4, 6, 16).bfloat16()"
    ),
    wants=_updates,
)
def bf16_swamping(evidence: Evidence) -> Iterator[Finding]:
    """Fire for units most of whose update never reaches the stream."""
    shares = [(m, evidence.seen.get((m.described.candidate.join, "lost"))) for m in stream(evidence)]
    known = [(m, s) for m, s in shares if s is not None]
    swamped = [(m, s) for m, s in known if s >= _LOST_OFTEN]
    if not any(s >= _LOST for _, s in swamped) and 2 * len(swamped) < max(len(known), 1):
        return
    first, share = swamped[0]
    worst = max(s for _, s in swamped)
    members: list[Member] = [m for m, _ in swamped]
    yield RULES["bf16-swamping"].finding(
        first.path,
        f"{share:.0%} of what the branch adds is rounded away in {first.unit.dtype}{repeated(members)}",
        {"lost": share, "lost_most": worst, "units": len(swamped), "of": len(known)},
    )


def _autocast_does(evidence: Evidence, before: int, behind: int, old: torch.dtype, new: torch.dtype) -> bool:
    """Whether autocast changes the format by itself: it widens at sums and norms, and layers give 16 bits."""
    links = evidence.found.links
    weights = any(links.nodes[i].op in ops.WORKING for i in links.region(before, behind))
    within = any(m.described.candidate.x == before and m.described.end == behind for m in stream(evidence))
    return torch.finfo(new).bits > torch.finfo(old).bits or (weights and not within)


@rule(
    "stream-dtype",
    severity="warning",
    summary="The number format of the stream changes along the way.",
    explanation="Behind one unit the stream is float32, behind the next 16 bits wide (or the other way round):"
    " precision is lost at one place and memory spent at another. One cast behind the last unit is usual. Under"
    " autocast layers give 16 bits and sums with float32 give float32: there only a stream that is narrowed on its way"
    " is told.",
    fix="cast once before the first unit, and let every unit give the format that it takes: x + branch(x).to(x.dtype)",
    source="NVIDIA/Megatron-LM PR 3504",
    faulty=program(
        TOKENS, layers="self.cast = torch.float64 if FAULT else torch.float32",
        unit="return x + self.branch(self.norm(x.float())).to(self.cast)", depth=4,
    ).replace("Block() for _ in range(4)", "Block(k) for k in range(4)").replace(
        "def __init__(self)", "def __init__(self, k)"
    ).replace("FAULT", "k > 1"),
    healthy=program(
        TOKENS, layers="self.cast = torch.float32",
        unit="return x + self.branch(self.norm(x.float())).to(self.cast)", depth=4,
    ),
)  # fmt: skip
def stream_dtype(evidence: Evidence) -> Iterator[Finding]:
    """Fire where two units of the main stream in a row differ in dtype."""
    nodes = evidence.graph.nodes
    places = [
        (member, i, nodes[i].dtype)
        for member in stream(evidence)
        for i in (member.described.candidate.x, member.described.end)
    ]
    known = [(m, i, d) for m, i, d in places if d is not None and d.is_floating_point][1:]  # the input may be cast
    changes = [
        ((a, old), (b, new))
        for (a, i, old), (b, j, new) in itertools.pairwise(known)
        if old != new and not (evidence.autocast is not None and _autocast_does(evidence, i, j, old, new))
    ]
    if not changes:
        return
    (before, old), (behind, new) = ((m, str(d).removeprefix("torch.")) for m, d in changes[0])
    yield RULES["stream-dtype"].finding(
        behind.path,
        f"the stream is {old} behind {before.path}, and {new} at {behind.path}",
        {"changes": len(changes), "before": old, "behind": new},
    )
