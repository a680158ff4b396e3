"""Rule ``checkpoint-side-effects``: what activation checkpointing does twice, or undoes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn

from skipway.diagnostics.measure import projection_loss
from skipway.diagnostics.rules._rule import RULES, Evidence, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from skipway.diagnostics.finding import Finding

__all__ = ["checkpoint_side_effects"]

_PROGRAM: Final = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))

    def forward(self, x):
        return x + BRANCH


model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *[Block() for _ in range(4)])
batch = torch.randn(4, 3, 8, 8)
"""


@rule(
    "checkpoint-side-effects",
    severity="warning",
    summary="Checkpointed blocks have side effects: BatchNorm counts a batch twice, or no gradient comes out.",
    explanation="Running statistics are updated once in forward and once more when the block is run again in backward."
    " Or the checkpoint is re-entrant and its input needs no gradient, so that its output has none either and the"
    " weights inside do not train.",
    fix="checkpoint(block, x, use_reentrant=False); keep BatchNorm outside of checkpointed blocks, or set its momentum"
    " to 1 - sqrt(1 - momentum)",
    source="pytorch/pytorch #96136; torch.utils.checkpoint documentation",
    faulty=_PROGRAM.replace("BRANCH", "checkpoint(self.branch, x, use_reentrant=False)"),
    healthy=_PROGRAM.replace("BRANCH", "self.branch(x)"),
)
def checkpoint_side_effects(evidence: Evidence) -> Iterator[Finding]:
    """Fire for norms that counted in backward, and for outputs without a graph that an input with one would have."""
    known = RULES["checkpoint-side-effects"]
    reentrant = "checkpoint" in evidence.backward_error.lower()  # it refuses the backward run of the measurement
    recounted: Mapping[str, int] = _recounted(evidence) if reentrant else evidence.recounted
    if recounted:
        first, times = next(iter(recounted.items()))
        yield known.finding(
            first,
            f"BatchNorm counts a batch {times + 1} times: once more in backward"
            + (f" \N{MULTIPLICATION SIGN}{len(recounted)}" if len(recounted) > 1 else ""),
            {"norms": len(recounted), "counts": times + 1},
        )
    names = _gained(evidence) if evidence.detached or evidence.constant or reentrant else []
    if names:
        yield known.finding(
            names[0].rpartition(".")[0],
            f"{len(names)} parameters get no gradient, and do once the input needs one: a re-entrant checkpoint on an"
            " input that needs none",
            {"parameters": len(names)},
        )


def _gained(evidence: Evidence) -> list[str]:
    """Parameters whose gradient comes only where what lies before them needs one, too."""
    if evidence.lab is None:
        return []
    try:
        without = evidence.lab.gradients("checkpoint-side-effects") if not evidence.detached else {}
        given = evidence.lab.gradients("checkpoint-side-effects", everything=True)
    except Exception:  # noqa: BLE001  # what fails with gradients shows nothing
        return []
    return [n for n, gradient in given.items() if gradient is not None and without.get(n) is None]


def _recounted(evidence: Evidence) -> dict[str, int]:
    """Norms that count in a plain ``backward``, and how often."""
    if evidence.lab is None:
        return {}
    norms = {
        name: m.num_batches_tracked
        for name, m in evidence.model.named_modules()
        if isinstance(m, nn.modules.batchnorm._NormBase) and m.num_batches_tracked is not None  # noqa: SLF001  # their base
    }

    def moved(output: object) -> list[int]:
        before = [int(count) for count in norms.values()]
        projection_loss(output).backward()
        return [now - then for now, then in zip(map(int, norms.values()), before, strict=True)]

    if not norms:
        return {}
    try:
        times = evidence.lab.with_gradients("checkpoint-side-effects", moved)
    except Exception:  # noqa: BLE001  # what fails with gradients shows nothing
        return {}
    return {name: n for name, n in zip(norms, times, strict=True) if n}
