"""Resizing of decoded images.

Shapes: N images, H and W pixels, C channels, S new side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional as F

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["resize"]

_CHUNK: Final = 1024  # images in float32 at a time


def resize(pixels: Tensor, size: int | None, name: str) -> Tensor:
    """Shrink images to `size` pixels a side.

    By a whole factor each new pixel is the mean of the pixels it covers; otherwise bilinear with antialiasing.
    Rounded to the nearest of 256 values.

    Args:
        pixels: (N, H, W, C) uint8.
        size: S; None for no change.
        name: of the set, for messages.

    Returns:
        (N, S, S, C) uint8.

    Raises:
        SkipwayError: the images are smaller than `size`.
    """
    height, width = pixels.shape[1:3]
    if size is None or height == width == size:
        return pixels
    if size > min(height, width):
        raise SkipwayError(
            f"image_size={size}, but the images of {name} have {height}×{width} pixels", f"at most {min(height, width)}"
        )
    whole = height % size == 0 and width % size == 0
    options = {"mode": "area"} if whole else {"mode": "bilinear", "antialias": True}
    parts = []
    for chunk in pixels.split(_CHUNK):
        small = F.interpolate(chunk.permute(0, 3, 1, 2).float(), size=(size, size), **options)
        parts.append(small.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous())
    return torch.cat(parts)
