"""CIFAR-100 (Krizhevsky 2009): 50,000 and 10,000 images of 32×32 pixels in a hundred classes, the fine ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.data.cifar_batches import BatchLayout
from skipway.data.download import fetch_archive
from skipway.data.image_tensors import open_images
from skipway.data.locate import Layout, read_first
from skipway.data.parquet import ParquetLayout
from skipway.data.sources._registry import register

if TYPE_CHECKING:
    import torch

    from skipway.data.dataset import Dataset
    from skipway.data.images import ImageSplits
    from skipway.spec import DataSpec

_BATCHES: Final = BatchLayout(name="CIFAR100", folder="cifar-100-python", labels="fine_labels", num_classes=100)
_PARQUET: Final = ParquetLayout(name="cifar100", image="img", label="fine_label", num_classes=100, classes=())
_LAYOUTS: Final[tuple[Layout[ImageSplits], ...]] = (_BATCHES, _PARQUET)


@register("cifar100")
def open_cifar100(spec: DataSpec, device: torch.device) -> Dataset:
    """Open CIFAR-100; padded, cropped and mirrored unless the spec says otherwise."""
    splits = read_first(spec, "cifar100", _LAYOUTS, lambda folder: fetch_archive(_BATCHES.source, folder))
    return open_images(splits, spec, auto="crop-flip", device=device)
