"""A folder of class folders as a data set: decoded into memory if it fits, else read as it is needed.

Shapes: N images, H and W pixels, C channels.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from PIL import Image

from skipway.data.cache import cached
from skipway.data.decode import GREY, Mode, as_array, decode_all, reported
from skipway.data.image_files import ImageFiles
from skipway.data.image_store import Augment, stored_bytes
from skipway.data.image_tensors import open_images
from skipway.data.images import Images, ImageSplits
from skipway.data.preparation import middle_square

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from skipway.data.class_folders import ClassFolders, Labelled
    from skipway.data.dataset import Dataset
    from skipway.spec import DataSpec

__all__ = ["open_folders"]

IN_MEMORY: Final = 1 << 30  # bytes, as they would be stored
_LARGEST_SIDE: Final = 224  # of images that are read as needed, unless the spec says otherwise


def open_folders(folders: ClassFolders, spec: DataSpec, device: torch.device) -> Dataset:
    """Open class folders; images are padded (or cut at random places and scales), cropped and mirrored by default.

    Raises:
        SkipwayError: the images differ in size and the spec gives none, or one cannot be decoded.
    """
    size, mode = _probe(folders)
    height, width = size if spec.image_size is None else (spec.image_size, spec.image_size)
    count, channels = len(folders.train) + len(folders.test), 3 if mode == "RGB" else 1
    augment: Augment = "crop-flip" if spec.augment == "auto" else spec.augment
    if stored_bytes((count, height, width, channels), augment) > IN_MEMORY:
        side = spec.image_size or min(_LARGEST_SIDE, *size)
        return ImageFiles(folders, spec, side=side, mode=mode, device=device)
    files = [Path(path) for path, _ in (*folders.train, *folders.test)]
    options = repr((spec.image_size, mode, folders.classes, folders.note, len(folders.train)))
    splits = cached(files, options, lambda: _decode(folders, spec.image_size, mode))
    return open_images(splits, spec, auto="crop-flip", device=device)


def _probe(folders: ClassFolders) -> tuple[tuple[int, int], Mode]:
    """Height and width of the first image, and grey if the first one of every class is grey."""
    firsts: dict[int, str] = {}
    for path, label in folders.train:
        firsts.setdefault(label, path)
    sizes, modes = [], set()
    for path in firsts.values():
        with reported(path), Image.open(path) as image:
            sizes.append((image.height, image.width))
            modes.add(image.mode)
    return sizes[0], "L" if modes <= GREY else "RGB"


def _decode(folders: ClassFolders, side: int | None, mode: Mode) -> ImageSplits:
    return ImageSplits(
        train=_images(folders.train, side, mode),
        test=_images(folders.test, side, mode),
        num_classes=len(folders.classes),
        classes=folders.classes,
        note=folders.note,
    )


def _images(files: Sequence[Labelled], side: int | None, mode: Mode) -> Images:
    def decode(k: int) -> np.ndarray:
        with Image.open(files[k][0]) as image:
            array = as_array(image, mode)
        return array if side is None else middle_square(array, side, files[k][0])

    pixels = decode_all(len(files), decode, lambda k: files[k][0], hint="image_size=…, which brings all to one size")
    return Images(pixels, torch.tensor([label for _, label in files], dtype=torch.int64))
