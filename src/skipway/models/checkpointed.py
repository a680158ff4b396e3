"""Gradient checkpointing of several units at a time, which counts batch statistics once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from skipway.blocks import AttentionBlock, ConvBlock, MLPBlock
from skipway.designs import UnitPlan

__all__ = ["best_segment", "checkpointed", "peak", "planned_sizes", "untracked"]


def checkpointed(run: Callable[..., Any], modules: Sequence[nn.Module], state: Any, progress: Tensor | None) -> Any:
    """``run(state, progress)``, which is run again in the backward pass instead of keeping its activations.

    Running statistics of batch norms are updated in the first pass only; PyTorch alone would count each batch twice.
    Random numbers and autocast are those of the first pass.

    Args:
        run: pure but for the batch norms of `modules`.
        modules: that it calls.
        state: what is kept.
        progress: as `PlannedUnit.forward` takes it.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _EachTime(lambda: untracked(*modules))

    return checkpoint(run, state, progress, use_reentrant=False, context_fn=contexts)


class _EachTime(AbstractContextManager[None]):
    """A context that is entered anew for each backward pass over the same graph.

    Args:
        make: a new one.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self.make, self.inside = make, ExitStack()

    def __enter__(self) -> None:
        self.inside.enter_context(self.make())

    def __exit__(self, *_: object) -> None:
        self.inside.close()


@contextmanager
def untracked(*modules: nn.Module) -> Iterator[None]:
    """Within it, batch norms leave their running statistics as they are."""
    # Momentum 0 leaves the statistics as they are; without running statistics other tensors would be saved, and the
    # checkpoint would complain.
    norms = [
        m for module in modules for m in module.modules()
        if isinstance(m, _BatchNorm) and m.training and m.track_running_stats
    ]  # fmt: skip
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, batches in kept:
            norm.momentum, norm.num_batches_tracked = momentum, batches


def peak(entered: Sequence[float], inside: Sequence[float], length: int) -> Any:
    """Most that is kept at any time of the backward pass, in the unit of the arguments.

    When a segment is run again, what was kept for the later ones is gone.

    Args:
        entered: what each unit reads.
        inside: what each unit keeps.
        length: units in a segment.
    """
    before, most = 0.0, 0.0
    for start in range(0, len(inside), length):
        before += entered[start]
        most = max(most, before + sum(inside[start : start + length]))
    return round(max(most, before))


def best_segment(entered: Sequence[float], inside: Sequence[float]) -> int:
    """Units in a segment for the least `peak`: about √L of L equal units.

    Args:
        entered: what each unit reads.
        inside: what each unit keeps.
    """
    return min(range(1, len(inside) + 1), key=lambda length: (peak(entered, inside, length), length))


def planned_sizes(plans: Sequence[UnitPlan]) -> tuple[list[float], list[float]]:
    """What each unit reads and what it keeps, in numbers for each place of the first unit's input, by its plan.

    Args:
        plans: of all units.
    """
    entered, inside = [], []
    area = 1.0
    for plan in plans:
        entered.append(plan.in_width * area)
        inside.append(_inside(plan) * area)
        area /= plan.site.block.stride**2
    return entered, inside


def _inside(plan: UnitPlan) -> float:
    """Each weight layer's input, and the input of the norm before it."""
    total = 0.0
    for branch in plan.branches:
        block = branch.block
        if isinstance(block, ConvBlock):
            area = 1.0
            for conv in block.convs:
                total += 2 * conv.in_width * area
                area /= conv.stride**2
        elif isinstance(block, MLPBlock):
            total += 2 * (block.reads + block.hidden)
        elif isinstance(block, AttentionBlock):
            total += 2 * block.reads + 4 * block.width  # queries, keys, values and what is mixed of them
        else:
            total += 2 * block.in_width
    return total
