"""Image sets that live as uint8 tensors on the device.

Shapes: N images, H and W pixels, C channels, B images in a batch.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from skipway.data.dataset import Dataset, Share
from skipway.data.image_store import Augment, ImageStore
from skipway.data.images import Images, ImageSplits
from skipway.data.info import DataInfo
from skipway.data.order import Order, generator
from skipway.data.preparation import Preparation
from skipway.data.resize import resize
from skipway.data.statistics import Statistics, statistics
from skipway.data.subset import balanced, subset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from skipway.spec import DataSpec

__all__ = ["ImageTensors", "open_images"]


def open_images(splits: ImageSplits, spec: DataSpec, *, auto: Augment, device: torch.device) -> ImageTensors:
    """Apply a spec's options to decoded images.

    The statistics are those of all training images at their new size, so that a subset does not change them.

    Args:
        splits: decoded images.
        spec: what is asked for.
        auto: the augmentation that ``"auto"`` stands for.
        device: where the images are to live.

    Raises:
        SkipwayError: a size is larger than what there is.
    """
    pixels = resize(splits.train.pixels, spec.image_size, spec.name)
    numbers = statistics(pixels, spec.normalize)
    train = _take(Images(pixels, splits.train.labels), spec.train_size, "train", spec.name)
    test = _take(splits.test, spec.test_size, "test", spec.name)
    test = Images(resize(test.pixels, spec.image_size, spec.name), test.labels)
    augment: Augment = auto if spec.augment == "auto" else spec.augment
    return ImageTensors(_Prepared(train, test, numbers, augment), splits, spec.name, device)


def _take(images: Images, size: int | None, what: str, name: str) -> Images:
    kept = subset(images.labels, size, what, name)
    return images if kept is None else Images(images.pixels[kept], images.labels[kept])


@dataclass(frozen=True)
class _Prepared:
    """Images after resizing and taking subsets, and what is to be done with them."""

    train: Images
    test: Images
    statistics: Statistics
    augment: Augment

    def fingerprint(self) -> str:
        """Of all that decides which numbers a batch holds, besides seed and step."""
        digest = hashlib.sha256(self.augment.encode())
        numbers = (self.statistics.mean, self.statistics.std)
        for tensor in (*numbers, self.train.pixels, self.train.labels, self.test.pixels, self.test.labels):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()[:32]


class ImageTensors(Dataset):
    """Images on a device; every batch is cut, mirrored and normalised as a whole.

    Args:
        prepared: images and what to do with them.
        splits: where they are from.
        name: of the set.
        device: where they live.
    """

    def __init__(self, prepared: _Prepared, splits: ImageSplits, name: str, device: torch.device) -> None:
        train, test = prepared.train, prepared.test
        height, width, channels = train.pixels.shape[1:]
        self.info = DataInfo(
            name=name,
            task="image",
            num_classes=splits.num_classes,
            input_shape=(channels, height, width),
            input_dtype="float32",
            classes=splits.classes,
            train_size=len(train.labels),
            test_size=len(test.labels),
            note=splits.note,
            fingerprint=prepared.fingerprint(),
        )
        self.augment, self.statistics = prepared.augment, prepared.statistics
        self.preparation = Preparation(
            mode="RGB" if channels == 3 else "L", height=height, width=width, margin=False,
            shift=self.statistics.mean.float(), scale=1 / self.statistics.std.float(),
        )  # fmt: skip
        self._fixed = balanced(train.labels, "sample")
        self._train_store = ImageStore(train.pixels, prepared.augment, prepared.statistics, device)
        self._test_store = ImageStore(test.pixels, "none", prepared.statistics, device)
        self._train_labels, self._test_labels = train.labels.to(device), test.labels.to(device)

    def _train(self, *, share: Share, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        order, store = Order(self.info.train_size, seed), self._train_store
        size, part = share.batch_size, share.of(share.batch_size)
        for step in itertools.count(start):
            samples = order.samples(step * size, size)
            variants = torch.randint(0, store.variants, (size,), generator=generator("augment", seed, step))
            yield self._batch(store, self._train_labels, samples[part], variants[part])

    def _test(self, *, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        for samples in torch.arange(self.info.test_size).split(share.batch_size):
            kept = samples[share.of(len(samples))]
            yield self._batch(self._test_store, self._test_labels, kept, torch.zeros_like(kept))

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """The same `n` training images at every call, balanced by class, without augmentation."""
        self._check_sample(n)
        samples = self._fixed[:n]
        variants = torch.full((n,), self._train_store.plain)
        return self._batch(self._train_store, self._train_labels, samples, variants)

    @staticmethod
    def _batch(store: ImageStore, labels: Tensor, samples: Tensor, variants: Tensor) -> tuple[Tensor, Tensor]:
        return store.cut(samples, variants), labels.index_select(0, samples.to(labels.device))
