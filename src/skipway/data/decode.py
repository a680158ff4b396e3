"""Encoded images to arrays, in threads: Pillow decodes outside the interpreter's lock.

Shapes: N images, H and W pixels, C channels.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import torch
from PIL import Image

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["DECODE_ERRORS", "Mode", "decode_all", "decode_bytes"]

Mode = Literal["RGB", "L"]
DECODE_ERRORS: Final = (
    OSError,
    SyntaxError,
    ValueError,
    Image.DecompressionBombError,
)  # what Pillow raises on bad bytes
_CHUNK: Final = 256  # images a task


def decode_bytes(encoded: bytes, mode: Mode) -> np.ndarray:
    """One image as (H, W, C) uint8."""
    with Image.open(io.BytesIO(encoded)) as image:
        array = np.asarray(image.convert(mode))
    return array[:, :, None] if mode == "L" else array


def decode_all(count: int, decode: Callable[[int], np.ndarray], where: Callable[[int], str]) -> Tensor:
    """Decode images of one size.

    Args:
        count: N.
        decode: image k as (H, W, C) uint8.
        where: names image k in messages.

    Returns:
        (N, H, W, C) uint8.

    Raises:
        SkipwayError: an image cannot be decoded, or has another size than the first.
    """

    def one(k: int) -> np.ndarray:
        try:
            return decode(k)
        except DECODE_ERRORS as error:
            raise SkipwayError(
                f"{where(k)}: the image cannot be decoded ({error})", "a whole image", "fetch the file again"
            ) from error

    first = one(0)
    pixels = np.empty((count, *first.shape), dtype=np.uint8)

    def fill(numbers: Sequence[int]) -> None:
        for k in numbers:
            image = one(k)
            if image.shape != first.shape:
                raise SkipwayError(
                    f"{where(k)}: an image of {image.shape[0]}×{image.shape[1]} pixels",
                    f"{first.shape[0]}×{first.shape[1]}, as the first one",
                )
            pixels[k] = image

    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        tasks = [pool.submit(fill, range(k, min(k + _CHUNK, count))) for k in range(0, count, _CHUNK)]
        try:
            for task in tasks:
                task.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return torch.from_numpy(pixels)
