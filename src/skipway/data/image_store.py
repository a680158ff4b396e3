"""Images in memory, from which augmented batches are cut.

Shapes: N images, H and W pixels, C channels, B images in a batch, p padding on each side, V = (2p+1)² or 2·(2p+1)²
variants of an image: places to crop, times two where it may be mirrored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

    from skipway.data.statistics import Statistics

__all__ = ["Augment", "ImageStore", "padding", "stored_bytes"]

Augment = Literal["crop-flip", "crop", "none"]
_CHUNK: Final = 4096


def padding(augment: Augment, side: int) -> int:
    """Pixels added on each side before cropping: 4 for images of 32, as He et al. do, and in proportion for others."""
    return 0 if augment == "none" else max(1, side // 8)


def stored_bytes(shape: tuple[int, int, int, int], augment: Augment) -> int:
    """Bytes that a store of images of `shape` (N, H, W, C) takes."""
    n, height, width, channels = shape
    p = padding(augment, min(height, width))
    return n * (height + 2 * p) * (width + 2 * p) * channels * (2 if augment == "crop-flip" else 1)


class ImageStore:
    """uint8 images, padded, and a mirrored copy where images are mirrored.

    A batch is one gather of whole windows: the window that starts at pixel s of the flat store is row s of an
    overlapping view, so that B integers say which images, where to crop, and whether mirrored. On one core that takes
    a quarter of the time of an index per pixel; the mirrored copy is its price.

    The padding is black, as torchvision's RandomCrop pads; where the mean image is subtracted, it is zero after that,
    as when the mean is subtracted first.

    Args:
        pixels: (N, H, W, C) uint8.
        augment: what `cut` may do.
        statistics: what to normalise with.
        device: where the images live.
    """

    def __init__(self, pixels: Tensor, augment: Augment, statistics: Statistics, device: torch.device) -> None:
        self.n, self.height, self.width, self.channels = pixels.shape
        self.padding = p = padding(augment, min(self.height, self.width))
        self.mirrored = augment == "crop-flip"
        copies = 2 if self.mirrored else 1
        self.shape = (copies, self.n, self.height + 2 * p, self.width + 2 * p, self.channels)
        if augment == "none":
            store = pixels.to(device).contiguous()
        else:
            store = torch.zeros(self.shape, dtype=torch.uint8, device=device)
            inside = store[:, :, p : p + self.height, p : p + self.width]
            for first in range(0, self.n, _CHUNK):  # in parts: a mirrored copy of all would be a third one
                chunk = pixels[first : first + _CHUNK].to(device)
                inside[0, first : first + _CHUNK] = chunk
                if self.mirrored:
                    inside[1, first : first + _CHUNK] = chunk.flip(2)
        self._windows = self._view_windows(store)
        self._shift = self._shifts(statistics).to(device)
        std = statistics.std.float().expand(self.height, self.width, self.channels)
        self._scale = (1 / std).reshape(-1).contiguous().to(device)

    @property
    def variants(self) -> int:
        """V: how many ways there are to cut an image."""
        return (2 * self.padding + 1) ** 2 * self.shape[0]

    @property
    def plain(self) -> int:
        """The variant that is the image itself."""
        return self.padding * (2 * self.padding + 1) + self.padding

    def _view_windows(self, store: Tensor) -> Tensor:
        """(starts, H, W·C): for every pixel of the store, the window whose upper left corner it is."""
        columns, channels = self.shape[3:]
        starts = store.numel() // channels - ((self.height - 1) * columns + self.width) + 1
        size = (starts, self.height, self.width * channels)
        return store.as_strided(size, (channels, columns * channels, 1))

    def _shifts(self, statistics: Statistics) -> Tensor:
        """What to subtract: (1, H·W·C), or (V, H·W·C) if the mean image is to be cut like the images."""
        mean = statistics.mean.float()
        if statistics.kind == "channel":
            return mean.expand(self.height, self.width, self.channels).reshape(1, -1).contiguous()
        p, k = self.padding, 2 * self.padding + 1
        copies = [mean, mean.flip(1)][: self.shape[0]]
        cut = [
            padded[y : y + self.height, x : x + self.width].reshape(-1)
            for padded in (F.pad(copy, (0, 0, p, p, p, p)) for copy in copies)
            for y in range(k)
            for x in range(k)
        ]
        return torch.stack(cut)

    def cut(self, samples: Tensor, variants: Tensor) -> Tensor:
        """Normalised images, channels-last.

        Args:
            samples: (B,) int64 on the processor, in [0, N).
            variants: (B,) int64 on the processor, in [0, V): ``(mirrored · k + y) · k + x`` with ``k = 2p + 1``.

        Returns:
            (B, C, H, W) float32 on the store's device.
        """
        k = 2 * self.padding + 1
        _, n, rows, columns, _ = self.shape
        mirrored, y, x = variants // (k * k), variants // k % k, variants % k
        starts = ((mirrored * n + samples) * rows + y) * columns + x
        device = self._windows.device
        pixels = self._windows.index_select(0, starts.to(device)).flatten(1)
        shift = self._shift if len(self._shift) == 1 else self._shift.index_select(0, variants.to(device))
        values = pixels.float().sub_(shift).mul_(self._scale)
        return values.view(-1, self.height, self.width, self.channels).permute(0, 3, 1, 2)
