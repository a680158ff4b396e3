"""From images to inputs: what a net that was trained on a set wants to be given, as the set gave it in tests.

Shapes: N images, H and W pixels of the inputs, h and w of an image as it comes, C channels.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Union

import numpy as np
import torch
from PIL import Image

from skipway.data.decode import Mode, as_array, in_mode, reported
from skipway.data.resize import resize
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["Preparation", "middle_square", "middle_view"]

_MARGIN: Final = 8 / 7  # the shorter side is brought to 256 for a crop of 224

_Image = Union[str, "os.PathLike[str]", Image.Image, np.ndarray]


@dataclass(frozen=True, kw_only=True, eq=False)
class Preparation:
    """Makes inputs of images: ``(pixels − shift) · scale``, on the pixels that the set would have cut in a test.

    Args:
        mode: ``"RGB"``, or ``"L"`` for grey.
        height, width: H and W.
        margin: whether the middle of an image is cut with a margin of 1/8 (large sets, RandomResizedCrop in training);
            else the largest square in its middle.
        shift, scale: float32 tensors that broadcast to (H, W, C), for pixel values in [0, 255].
    """

    mode: Mode
    height: int
    width: int
    margin: bool
    shift: Tensor
    scale: Tensor

    def __call__(self, images: _Image | Sequence[_Image]) -> Tensor:
        """Inputs, channels-last in memory.

        Args:
            images: one or several; each a path, a Pillow image, or an array (h, w, C) or (h, w) of uint8.

        Returns:
            (N, C, H, W) float32.

        Raises:
            SkipwayError: an image cannot be decoded, is smaller than what the net was trained on, or is none.
        """
        several: list[Any] = list(images) if isinstance(images, (list, tuple)) else [images]
        if not several:
            raise SkipwayError("no images", "at least one")
        pixels = torch.stack([self._pixels(image, k) for k, image in enumerate(several)])
        return pixels.float().sub_(self.shift).mul_(self.scale).permute(0, 3, 1, 2)

    def _pixels(self, image: _Image, k: int) -> Tensor:
        """(H, W, C) uint8."""
        if isinstance(image, (str, os.PathLike)):
            where = os.fspath(image)
            if not os.path.isfile(where):  # noqa: PTH113  # whatever kind of path it is
                raise SkipwayError(f"there is no file {where}", "the path of an image")
            with reported(where), Image.open(where) as opened:
                return self._cut(opened, where)
        where = f"image {k}"
        if isinstance(image, np.ndarray):
            image = _of_array(image, where)
        if not isinstance(image, Image.Image):
            raise SkipwayError(
                f"{where}: {type(image).__name__}", "a path, a Pillow image, or an array (h, w, C) of uint8"
            )
        with reported(where):
            return self._cut(image, where)

    def _cut(self, image: Image.Image, where: str) -> Tensor:
        if self.margin:
            return torch.from_numpy(as_array(middle_view(self.height)(in_mode(image, self.mode)), self.mode))
        array = as_array(image, self.mode)
        height, width = array.shape[:2]
        if (height, width) == (self.height, self.width):
            return torch.from_numpy(array)
        if self.height != self.width or min(height, width) < self.height:
            least = "" if self.height != self.width else "at least "
            raise SkipwayError(
                f"{where}: an image of {height}×{width} pixels",
                f"{least}{self.height}×{self.width}, as the net was trained on",
                f"image.resize(({self.width}, {self.height}))",
            )
        return torch.from_numpy(middle_square(array, self.height, where))


def _of_array(array: np.ndarray[Any, Any], where: str) -> Image.Image:
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if array.dtype != np.uint8 or not (grey or (array.ndim == 3 and array.shape[2] in (3, 4))) or not array.size:
        raise SkipwayError(f"{where}: {array.dtype} array of shape {array.shape}", "uint8 of shape (h, w, C) or (h, w)")
    return Image.fromarray(array.reshape(array.shape[:2]) if grey else array)


def middle_view(side: int) -> Callable[[Image.Image], Image.Image]:
    """The middle of an image, `side` pixels wide and high, after its shorter side is brought to 8/7 of that."""
    from torchvision.transforms import v2

    view: Callable[[Image.Image], Image.Image] = v2.Compose(
        [v2.Resize(round(side * _MARGIN), antialias=True), v2.CenterCrop(side)]
    )
    return view


def middle_square(array: np.ndarray[Any, Any], side: int, path: str) -> np.ndarray[Any, Any]:
    """The middle square of an image (h, w, C), resized to `side`.

    Raises:
        SkipwayError: it is smaller.
    """
    height, width = array.shape[:2]
    shorter = min(height, width)
    if side > shorter:
        raise SkipwayError(f"image_size={side}, but {path} has {height}×{width} pixels", f"at most {shorter}")
    top, left = (height - shorter) // 2, (width - shorter) // 2
    middle = torch.from_numpy(array[None, top : top + shorter, left : left + shorter].copy())
    resized: np.ndarray[Any, Any] = resize(middle, side, path)[0].numpy()
    return resized
