"""CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 images of 32×32 pixels in ten classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.data.image_tensors import open_images
from skipway.data.locate import read_images
from skipway.data.parquet import ParquetLayout
from skipway.data.sources._registry import register

if TYPE_CHECKING:
    import torch

    from skipway.data.dataset import Dataset
    from skipway.spec import DataSpec

_CLASSES: Final = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@register("cifar10")
def open_cifar10(spec: DataSpec, device: torch.device) -> Dataset:
    """Open CIFAR-10; augmented by padding, cropping and mirroring unless asked for otherwise."""
    layouts = [ParquetLayout(image="img", label="label", num_classes=10, classes=_CLASSES)]
    return open_images(read_images(spec, "cifar10", layouts), spec, auto="crop-flip", device=device)
