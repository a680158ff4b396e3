"""Rules ``ddp-unsafe-skip`` and ``compile-unsafe-skip``: blocks that Python's flow leaves out by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._chance import SEEDS, Chance, chance
from skipway.diagnostics.rules._rule import RULES, Evidence, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["compile_unsafe_skip", "ddp_unsafe_skip"]

_PROGRAM: Final = """
import random

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        SKIP


model = nn.Sequential(*[Block() for _ in range(6)])
batch = torch.randn(4, 16)
"""
_SKIPS: Final = _PROGRAM.replace(
    "SKIP",
    "if self.training and random.random() < 0.5:\n            return x\n        return x + self.linear(self.norm(x))",
)
_MASKS: Final = _PROGRAM.replace(
    "SKIP",
    "keep = (torch.rand(()) < 0.5).to(x.dtype) / 0.5 if self.training else 1.0\n"
    "        return x + keep * self.linear(self.norm(x))",
)
_SOURCE: Final = "pytorch/pytorch #90171, #95425"


@rule(
    "ddp-unsafe-skip",
    severity="warning",
    summary="A block that is skipped by chance leaves its parameters without a gradient.",
    explanation="Which modules run differs from run to run in train mode, so in some steps parameters take no part:"
    " DistributedDataParallel then waits for gradients that do not come, or needs find_unused_parameters. Shown by"
    f" {SEEDS} runs with other random numbers; asked only of models in whose forward random numbers are drawn that no"
    " tensor depends on.",
    fix="always run the block and multiply what it adds by 0 or 1/keep, drawn as a tensor",
    source=_SOURCE,
    faulty=_SKIPS,
    healthy=_MASKS,
    needs=("runs",),
)
def ddp_unsafe_skip(evidence: Evidence) -> Iterator[Finding]:
    """Fire where the set of parameters that are read varies."""
    found = chance(evidence, "ddp-unsafe-skip")
    if found is None or not found.parameters:
        return
    first = found.parameters[0]
    yield RULES["ddp-unsafe-skip"].finding(
        _where(evidence, found) or first.rpartition(".")[0],
        f"{len(found.parameters)} parameters are left out of some runs, {first} the first of them",
        {"parameters": len(found.parameters), "modules": len(found.varying or ()), "runs": SEEDS},
    )


@rule(
    "compile-unsafe-skip",
    severity="warning",
    summary="Random numbers that Python draws decide in forward what runs: a compiled model freezes or breaks there.",
    explanation="While the model ran, Python's or NumPy's random generator moved, or a random tensor was drawn whose"
    f" value only Python reads and {SEEDS} runs with other random numbers are not one sequence of operations. A"
    " compiled graph holds one sequence: torch.compile breaks the graph there, or keeps one draw for ever. The compiler"
    " itself is not asked: that would drop the graphs of all compiled models in the process.",
    fix="draw a tensor mask: keep = (torch.rand(len(x), 1, 1) < p) / p; x = x + keep * self.branch(x)",
    source=_SOURCE,
    faulty=_SKIPS,
    healthy=_MASKS,
)
def compile_unsafe_skip(evidence: Evidence) -> Iterator[Finding]:
    """Fire for generators outside of PyTorch's that move, and for flow that a random tensor decides."""
    found = chance(evidence, "compile-unsafe-skip")
    if found is None:
        return
    outside = [s for s in found.sources if s != "torch"]
    if not outside and found.graphs < 2:
        return
    where = _where(evidence, found)
    drawn = "Python's flow follows random numbers" if not outside else f"forward draws random numbers from {outside[0]}"
    also = f"; {len(found.varying)} modules run in some runs and not in others" if found.varying else ""
    also += f"; {SEEDS} runs gave {found.graphs} different graphs" if found.graphs > 1 else ""
    numbers: dict[str, float | int | str] = {
        "generators": ", ".join(found.sources), "varying_modules": len(found.varying or ()),
    }  # fmt: skip
    if found.varying is not None:
        numbers |= {"runs": SEEDS, "different_graphs": found.graphs}
    yield RULES["compile-unsafe-skip"].finding(where, drawn + also, numbers)


def _where(evidence: Evidence, found: Chance) -> str:
    """The block that chooses what runs: around the first module that is left out, if that is one which always runs."""
    if not found.varying:
        return ""
    first = found.varying[0]
    around = first.rpartition(".")[0]
    called = {call.path for call in evidence.graph.calls}
    return around if around in called - set(found.varying) - {""} else first
