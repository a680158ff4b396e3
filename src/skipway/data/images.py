"""Decoded images of one split, before any option is applied.

Shapes: N images, H and W pixels, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ImageSplits", "Images"]


@dataclass(frozen=True)
class Images:
    """Pixels (N, H, W, C) uint8 and labels (N,) int64."""

    pixels: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class ImageSplits:
    """Both splits of a set that fits in memory.

    Args:
        train: training images.
        test: test images.
        num_classes: labels are in [0, num_classes).
        classes: their names; may be empty.
        note: where the images come from, in words.
    """

    train: Images
    test: Images
    num_classes: int
    classes: tuple[str, ...]
    note: str
