"""Fashion-MNIST (arXiv 1708.07747): 60,000 and 10,000 grey images of 28×28 pixels in ten classes.

Padded and cropped by default, not mirrored: the shoes, a third of the classes, all point to one side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.data.download import fetch_resources
from skipway.data.idx import IdxLayout
from skipway.data.image_tensors import open_images
from skipway.data.locate import Layout, read_first
from skipway.data.parquet import ParquetLayout
from skipway.data.sources._registry import register

if TYPE_CHECKING:
    import torch

    from skipway.data.dataset import Dataset
    from skipway.data.images import ImageSplits
    from skipway.spec import DataSpec

_CLASSES: Final = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_IDX: Final = IdxLayout(name="FashionMNIST", num_classes=10)
_PARQUET: Final = ParquetLayout(
    name="fashion_mnist", image="image", label="label", num_classes=10, classes=_CLASSES, mode="L"
)
_LAYOUTS: Final[tuple[Layout[ImageSplits], ...]] = (_IDX, _PARQUET)


@register("fashion_mnist")
def open_fashion_mnist(spec: DataSpec, device: torch.device) -> Dataset:
    """Open Fashion-MNIST; padded and cropped unless the spec says otherwise."""
    splits = read_first(spec, "fashion_mnist", _LAYOUTS, lambda folder: fetch_resources(_IDX.source, folder))
    return open_images(splits, spec, auto="crop", device=device)
