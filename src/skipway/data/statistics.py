"""What images are normalised with, computed from the training images.

Shapes: N images, H and W pixels, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Statistics", "statistics"]

_CHUNK: Final = 256  # 256 · 255² < 2²⁴: sums of so many squares are exact in float32, in whatever order


@dataclass(frozen=True)
class Statistics:
    """(x − mean) / std of pixel values in [0, 255]; float64 tensors that broadcast to (H, W, C).

    Args:
        kind: ``"channel"`` or ``"pixel"``.
        mean: (1, 1, C), or the mean image (H, W, C).
        std: (1, 1, C), or (1, 1, 1).
    """

    kind: Literal["channel", "pixel"]
    mean: Tensor
    std: Tensor


def statistics(pixels: Tensor, kind: Literal["channel", "pixel"]) -> Statistics:
    """Mean and standard deviation (of the population) of training images, exact up to the last rounding.

    ``"channel"``: over all images and pixels, by channel. ``"pixel"``: the mean image, and the root mean square of all
    that remains when it is subtracted (arXiv 1512.03385 subtracts the mean image). A deviation of zero counts as one.

    Args:
        pixels: (N, H, W, C) uint8.
        kind: which.
    """
    total = torch.zeros(pixels.shape[1:], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for chunk in pixels.split(_CHUNK):
        values = chunk.float()
        total += values.sum(0)
        squares += values.square_().sum(0)
    if kind == "channel":
        mean = total.mean((0, 1), keepdim=True) / len(pixels)
        variance = squares.mean((0, 1), keepdim=True) / len(pixels) - mean.square()
    else:
        mean = total / len(pixels)
        variance = (squares / len(pixels) - mean.square()).mean().view(1, 1, 1)
    std = variance.clamp(min=0).sqrt()
    return Statistics(kind, mean, torch.where(std > 1e-6, std, 1.0))
