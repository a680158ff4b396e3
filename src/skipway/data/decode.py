"""Encoded images to arrays, in threads: Pillow decodes outside the interpreter's lock.

Shapes: N images, H and W pixels, C channels.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import torch
from PIL import Image

from skipway.cores import cores
from skipway.data.files import readable
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

__all__ = ["GREY", "Mode", "as_array", "decode_all", "decode_bytes", "in_mode", "reported"]

Mode = Literal["RGB", "L"]
GREY: Final = frozenset({"1", "L", "I;16", "I;16L", "I;16B", "I;16N"})  # Pillow's modes of one channel
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
    except _PixelsError as error:
        raise SkipwayError(f"{where}: {error}", "8 or 16 bits a channel", "write it anew in one of these") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise SkipwayError(
            f"{where}: the image cannot be decoded ({error})", "a whole image",
            "fetch the file again; a new run may also go without it",
        ) from error  # fmt: skip


class _PixelsError(ValueError):
    """An image whose numbers have no known range."""


def in_mode(image: Image.Image, mode: Mode) -> Image.Image:
    """An opened image with 8 bits a channel, in colour or grey; 16 bits become 8 by rounding.

    Raises:
        ValueError: pixels are 32-bit integers or floats, whose range is anybody's (inside `reported`, in words).
    """
    if image.mode in ("I", "F"):
        kind = "integers" if image.mode == "I" else "floats"
        raise _PixelsError(f"pixels are 32-bit {kind}, whose range is not known")
    if image.mode.startswith("I;16"):  # Pillow itself clips these to 255
        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    return image.convert(mode)


def decode_bytes(encoded: bytes, mode: Mode) -> np.ndarray:
    """One image as (H, W, C) uint8."""
    with Image.open(io.BytesIO(encoded)) as image:
        return as_array(image, mode)


def as_array(image: Image.Image, mode: Mode) -> np.ndarray:
    """An opened image as (H, W, C) uint8."""
    array = np.array(in_mode(image, mode))
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

    with ThreadPoolExecutor(max_workers=min(16, cores())) as pool:
        tasks = [pool.submit(fill, range(k, min(k + _CHUNK, count))) for k in range(0, count, _CHUNK)]
        try:
            for task in tasks:
                task.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return torch.from_numpy(pixels)
