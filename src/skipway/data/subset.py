"""Subsets that are drawn once, balanced by class, and nested: a larger one holds every smaller one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skipway.data.order import generator
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["balanced", "subset"]


def balanced(labels: Tensor, purpose: str) -> Tensor:
    """All samples in an order of which every beginning is balanced by class, as far as the classes reach.

    Args:
        labels: (N,) int64.
        purpose: names the draw; another purpose gives another order.

    Returns:
        (N,) int64, a permutation: first one sample of each class, then a second of each, and so on.
    """
    shuffled = torch.randperm(len(labels), generator=generator(purpose))
    by_class = torch.argsort(labels[shuffled], stable=True)
    grouped = labels[shuffled][by_class]
    counts = torch.bincount(grouped)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[grouped]
    return shuffled[by_class][torch.argsort(rank, stable=True)]


def subset(labels: Tensor, size: int | None, what: str, name: str) -> Tensor | None:
    """Which samples to use, in rising order; None for all.

    Args:
        labels: (N,) int64.
        size: how many; None for all.
        what: ``"train"`` or ``"test"``.
        name: of the set, for messages.

    Raises:
        SkipwayError: the set has fewer samples.
    """
    if size is None or size == len(labels):
        return None
    if size > len(labels):
        raise SkipwayError(f"{what}_size={size}, but {name} has {len(labels)} {what} samples", f"at most {len(labels)}")
    return balanced(labels, f"subset/{what}")[:size].sort().values
