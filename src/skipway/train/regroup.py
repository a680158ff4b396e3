"""A run that goes on with another number of processes: what stays the same, and what by its nature does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from torch.nn import Module

__all__ = ["what_differs"]


def what_differs(net: Module, batch_size: int, *, before: int, now: int, drawn: bool) -> str:
    """A line for a person.

    Args:
        net: the model.
        batch_size: samples in a step, over all processes.
        before: processes that wrote the checkpoint.
        now: processes that go on.
        drawn: whether the net draws random numbers in training.
    """
    said = (
        f"goes on with {now} process{'es' * (now != 1)}, was {before}: "
        "each step has the same samples, in the same order and equally augmented"
    )
    if drawn:
        said += "; the net draws random numbers (dropout), which are others now, so losses differ by the draw"
    if any(isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm) for m in net.modules()):
        share, was = batch_size // now, batch_size // before
        said += f"; BatchNorm sees {share} samples at a time, was {was}, so losses differ by its statistics"
    return said
