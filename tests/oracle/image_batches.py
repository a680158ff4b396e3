"""Augmented batches made image by image, as one would write them first.

Shapes: N images, H and W pixels, C channels, p padding.
"""

from __future__ import annotations

import numpy as np
import torch

from skipway.data.order import generator

__all__ = ["batch_by_image", "cut_image", "samples_of_step"]


def samples_of_step(size: int, seed: int, step: int, batch_size: int) -> list[int]:
    """Which samples a batch holds: one by one from the permutations of their epochs."""
    found = []
    for position in range(step * batch_size, (step + 1) * batch_size):
        permutation = torch.randperm(size, generator=generator("order", seed, position // size))
        found.append(int(permutation[position % size]))
    return found


def cut_image(image: np.ndarray, *, mirrored: bool, y: int, x: int, padding: int) -> np.ndarray:
    """Mirror, pad with zeros, crop: (H, W, C) to (H, W, C)."""
    height, width, _ = image.shape
    if mirrored:
        image = image[:, ::-1]
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    return padded[y : y + height, x : x + width]


def batch_by_image(
    pixels: np.ndarray,
    draws: list[tuple[int, ...]],
    *,
    mean: np.ndarray,
    std: np.ndarray,
    padding: int,
    subtract_first: bool,
) -> np.ndarray:
    """(N, C, H, W) in the dtype of `mean`.

    Args:
        pixels: (N, H, W, C) uint8.
        draws: sample, mirrored, y, x of every image of the batch.
        mean: broadcasts to (H, W, C).
        std: likewise.
        padding: p.
        subtract_first: whether the mean is subtracted before the image is padded, or after it is cut.
    """
    found = []
    for sample, mirrored, y, x in draws:
        image = pixels[sample].astype(mean.dtype)
        if subtract_first:
            image = cut_image(image - mean, mirrored=bool(mirrored), y=y, x=x, padding=padding)
        else:
            image = cut_image(image, mirrored=bool(mirrored), y=y, x=x, padding=padding) - mean
        found.append((image * (1 / std)).transpose(2, 0, 1))
    return np.stack(found)
