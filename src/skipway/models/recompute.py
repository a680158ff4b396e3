"""Gradient checkpointing that counts batch statistics once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

__all__ = ["recomputed"]


def recomputed(unit: nn.Module, *inputs: Any) -> Any:
    """``unit(*inputs)``, whose activations are computed again in the backward pass instead of being kept.

    Running statistics of batch norms are updated in the first pass only; PyTorch alone would count each batch twice.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _untracked(unit)

    return checkpoint(unit, *inputs, use_reentrant=False, context_fn=contexts)


@contextmanager
def _untracked(unit: nn.Module) -> Iterator[None]:
    # Momentum 0 leaves the statistics as they are; without running statistics other tensors would be saved, and the
    # checkpoint would complain.
    norms = [m for m in unit.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, batches in kept:
            norm.momentum, norm.num_batches_tracked = momentum, batches
