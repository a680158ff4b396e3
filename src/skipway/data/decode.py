"""Encoded images to arrays, in threads: Pillow decodes outside the interpreter's lock.

Shapes: N images, H and W pixels, C channels.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import torch
from PIL import Image

from skipway.data.files import readable
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

__all__ = ["Mode", "as_array", "decode_all", "decode_bytes", "reported"]

Mode = Literal["RGB", "L"]
_CHUNK: Final = 256  # images a task


@contextmanager
def reported(where: str) -> Iterator[None]:
    """Decoding inside; what Pillow raises on bad bytes becomes an error that says where they are.

    Raises:
        SkipwayError: the file is missing, may not be read, or holds no whole image.
    """
    try:
        with readable(Path(where)):
            yield
    except SkipwayError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise SkipwayError(
            f"{where}: the image cannot be decoded ({error})", "a whole image", "fetch the file again, or remove it"
        ) from error


def decode_bytes(encoded: bytes, mode: Mode) -> np.ndarray:
    """One image as (H, W, C) uint8."""
    with Image.open(io.BytesIO(encoded)) as image:
        return as_array(image, mode)


def as_array(image: Image.Image, mode: Mode) -> np.ndarray:
    """An opened image as (H, W, C) uint8."""
    array = np.array(image.convert(mode))
    return array[:, :, None] if mode == "L" else array


def decode_all(
    count: int, decode: Callable[[int], np.ndarray], where: Callable[[int], str], *, hint: str = ""
) -> Tensor:
    """Decode images of one size.

    Args:
        count: N.
        decode: image k as (H, W, C) uint8.
        where: names image k in messages.
        hint: what to do if the images differ in size.

    Returns:
        (N, H, W, C) uint8.

    Raises:
        SkipwayError: an image cannot be decoded, or has another size than the first.
    """
    with reported(where(0)):
        first = decode(0)
    pixels = np.empty((count, *first.shape), dtype=np.uint8)

    def fill(numbers: Sequence[int]) -> None:
        for k in numbers:
            with reported(where(k)):
                image = decode(k)
            if image.shape != first.shape:
                raise SkipwayError(
                    f"{where(k)}: an image of {image.shape[0]}×{image.shape[1]} pixels",
                    f"{first.shape[0]}×{first.shape[1]}, as {where(0)}",
                    hint,
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
