"""Rules ``ddp-unsafe-skip`` and ``compile-unsafe-skip``: blocks that Python's flow leaves out by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["compile_unsafe_skip", "ddp_unsafe_skip"]

_SEEDS: Final = 8
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


@dataclass(frozen=True)
class _Chance:
    """What differs between runs with other random numbers.

    Args:
        sources: whose random numbers decide in Python.
        varying: modules that ran in some runs and not in others; None where no runs were made.
        parameters: names of the trained parameters that some runs do not read.
    """

    sources: tuple[str, ...]
    varying: tuple[str, ...] | None
    parameters: tuple[str, ...]


@rule(
    "ddp-unsafe-skip",
    severity="warning",
    summary="A block that is skipped by chance leaves its parameters without a gradient.",
    explanation="Which modules run differs from run to run in train mode, so in some steps parameters take no part:"
    " DistributedDataParallel then waits for gradients that do not come, or needs find_unused_parameters. Shown by"
    f" {_SEEDS} runs with other random numbers; asked only of models in whose forward random numbers are drawn that no"
    " tensor depends on.",
    fix="always run the block and multiply what it adds by 0 or 1/keep, drawn as a tensor",
    source=_SOURCE,
    faulty=_SKIPS,
    healthy=_MASKS,
    needs=("runs",),
)
def ddp_unsafe_skip(evidence: Evidence) -> Iterator[Finding]:
    """Fire where the set of parameters that are read varies."""
    chance = _chance(evidence, "ddp-unsafe-skip")
    if chance is None or not chance.parameters:
        return
    first = chance.parameters[0]
    yield RULES["ddp-unsafe-skip"].finding(
        first.rpartition(".")[0],
        f"{len(chance.parameters)} parameters are left out of some runs, {first} the first of them",
        {"parameters": len(chance.parameters), "modules": len(chance.varying or ()), "runs": _SEEDS},
    )


@rule(
    "compile-unsafe-skip",
    severity="warning",
    summary="Random numbers that Python draws decide in forward what runs: a compiled model freezes or breaks there.",
    explanation="While the model ran, Python's or NumPy's random generator moved, or a random tensor was drawn whose"
    " value only Python reads, and which modules run differs from run to run. torch.compile breaks the graph there, or"
    " keeps one draw for ever.",
    fix="draw a tensor mask: keep = (torch.rand(len(x), 1, 1) < p) / p; x = x + keep * self.branch(x)",
    source=_SOURCE,
    faulty=_SKIPS,
    healthy=_MASKS,
)
def compile_unsafe_skip(evidence: Evidence) -> Iterator[Finding]:
    """Fire for generators outside of PyTorch's that move, and for flow that a random tensor decides."""
    chance = _chance(evidence, "compile-unsafe-skip")
    if chance is None:
        return
    outside = [s for s in chance.sources if s != "torch"]
    if not outside and not chance.varying:
        return
    where = (chance.varying or ("",))[0]
    drawn = "Python's flow follows random numbers" if not outside else f"forward draws random numbers from {outside[0]}"
    also = f"; {len(chance.varying)} modules run in some runs and not in others" if chance.varying else ""
    yield RULES["compile-unsafe-skip"].finding(
        where, drawn + also, {"generators": ", ".join(chance.sources), "varying_modules": len(chance.varying or ())}
    )


def _chance(evidence: Evidence, asks: str) -> _Chance | None:
    """What chance decides in Python; None where nothing hints at it."""
    outside = sorted(evidence.trace.drawn_from - {"torch"})
    unread = "torch" in evidence.trace.drawn_from and _draws_for_python(evidence)
    if not (outside or unread) or evidence.trace.error is not None:
        return None
    sources = (*outside, *(("torch",) if unread else ()))
    if evidence.lab is None:
        return _Chance(sources, None, ())
    called: list[frozenset[str]] = []
    read: list[frozenset[str]] = []
    for seed in range(_SEEDS):
        try:
            graph = evidence.lab.trace(asks, mode="train", seed=seed).graph
        except Exception:  # noqa: BLE001  # a model that fails in train mode says nothing of chance
            return _Chance(sources, None, ())
        called.append(frozenset(call.path for call in graph.calls))
        read.append(frozenset(name for k, name in enumerate(graph.parameter_names) if _reads(graph.nodes, k)))
    order = {name: k for k, (name, _) in enumerate(evidence.model.named_modules())}
    varying = sorted(frozenset.union(*called) - frozenset.intersection(*called), key=lambda p: order.get(p, -1))
    trained = {n for n, p in evidence.model.named_parameters() if p.requires_grad}
    left_out = (frozenset.union(*read) - frozenset.intersection(*read)) & trained
    parameters = [n for n, _ in evidence.model.named_parameters() if n in left_out]
    return _Chance(sources, tuple(varying), tuple(parameters))


def _reads(nodes: object, parameter: int) -> bool:
    return any(node.op == "param" and node.params >> parameter & 1 for node in nodes)  # type: ignore[attr-defined]  # nodes


def _draws_for_python(evidence: Evidence) -> bool:
    """Whether a random tensor was drawn that no result depends on."""
    links = evidence.found.links
    return any(n.op in ops.RANDOM and not links.alive[n.id] for n in links.nodes)
