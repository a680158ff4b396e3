"""The idx files of MNIST and its kin, in the folder that torchvision fills.

Shapes: N images, H and W pixels.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from skipway.data.files import check_labels, check_md5, readable
from skipway.data.images import Images, ImageSplits
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["IdxLayout", "parse_idx"]

_UINT8: Final = 8  # idx's code of the type
_PREFIXES: Final = {"train": "train", "test": "t10k"}


@dataclass(frozen=True, kw_only=True)
class IdxLayout:
    """``NAME/raw/`` with four idx files, each unpacked or as the ``.gz`` that is fetched.

    A ``.gz`` is compared with torchvision's checksum; there is none for unpacked files, of which the size is checked.

    Args:
        name: torchvision's class, whose name the folder bears.
        num_classes: labels are in [0, num_classes).
    """

    name: Literal["FashionMNIST"]
    num_classes: int

    @property
    def source(self) -> Any:
        """Torchvision's class, of which only the constants are used."""
        from torchvision import datasets

        return getattr(datasets, self.name)

    @property
    def words(self) -> str:
        """The layout in words."""
        return f"{self.name}/raw/ with train-images-idx3-ubyte and so on, packed or not"

    def read(self, folder: Path) -> ImageSplits | None:
        """All images; None if the layout is not there.

        Raises:
            SkipwayError: a file is missing or damaged.
        """
        raw = folder / self.name / "raw"
        if not raw.is_dir():
            return None
        train, test = (self._images(raw, split) for split in ("train", "test"))
        return ImageSplits(
            train=train,
            test=test,
            num_classes=self.num_classes,
            classes=tuple(self.source.classes),
            note="the original idx files",
        )

    def _images(self, raw: Path, split: str) -> Images:
        prefix = _PREFIXES[split]
        pixels, labels = (
            self._array(raw, f"{prefix}-images-idx3-ubyte"),
            self._array(raw, f"{prefix}-labels-idx1-ubyte"),
        )
        check_labels(raw / f"{prefix}-labels-idx1-ubyte", labels, self.num_classes)
        if len(pixels) != len(labels):
            raise SkipwayError(f"{raw} has {len(pixels)} {split} images and {len(labels)} labels", "as many of both")
        return Images(torch.from_numpy(pixels).unsqueeze(-1), torch.from_numpy(labels).to(torch.int64))

    def _array(self, raw: Path, name: str) -> np.ndarray:
        path = raw / name
        if path.exists():
            with readable(path):
                return parse_idx(path, path.read_bytes())
        path = raw / f"{name}.gz"
        with readable(path):
            packed = path.read_bytes()
        check_md5(path, packed, dict(self.source.resources)[path.name])
        try:
            return parse_idx(path, gzip.decompress(packed))
        except (OSError, EOFError, zlib.error) as error:
            raise SkipwayError(f"{path} is damaged: {error}", "a gzip file", "delete it and fetch it again") from error


def parse_idx(path: Path, content: bytes) -> np.ndarray:
    """The array of an idx file of bytes: two zeros, the type, the number of dimensions, the dimensions, the values.

    Args:
        path: for messages.
        content: of the file.

    Raises:
        SkipwayError: the content is no such file, or shorter or longer than it says.
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _UINT8]) or len(content) < 4 + 4 * content[3]:
        raise SkipwayError(
            f"{path} is damaged: it starts with {content[:4].hex(' ')}", "an idx file: 00 00 08 and so on"
        )
    dimensions = content[3]
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", dimensions, 4))
    values = len(content) - 4 - 4 * dimensions
    if values != math.prod(shape):
        raise SkipwayError(
            f"{path} is damaged: {values} bytes for {'×'.join(map(str, shape))} values",
            f"{math.prod(shape)} bytes",
            "delete the file and fetch it again",
        )
    array: np.ndarray = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()
    return array
