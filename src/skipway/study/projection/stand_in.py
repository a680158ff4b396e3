"""A data set that is not there, as far as costs go: random samples of its shape.

Shapes: N samples, C channels, H = W pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from skipway.data.dataset import Dataset, Share
from skipway.data.info import DataInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from skipway.spec import DataSpec

__all__ = ["SHAPES", "StandIn"]

# Channels, pixels of a side, classes, training and test samples, as published.
SHAPES: Final = {
    "cifar10": (3, 32, 10, 50_000, 10_000),
    "cifar100": (3, 32, 100, 50_000, 10_000),
    "fashion_mnist": (1, 28, 10, 60_000, 10_000),
    "imagenet": (3, 224, 1000, 1_281_167, 50_000),
}


class StandIn(Dataset):
    """Random samples (N,C,H,W) and labels, the same ones in every batch.

    Args:
        spec: names the set; one of `SHAPES`.
        device: where batches come out.
    """

    def __init__(self, spec: DataSpec, device: torch.device) -> None:
        channels, side, classes, train_size, test_size = SHAPES[spec.name]
        side = spec.image_size or side
        self._device = device
        self.info = DataInfo(
            name=spec.name,
            task="image",
            num_classes=classes,
            input_shape=(channels, side, side),
            input_dtype="float32",
            classes=(),
            train_size=min(spec.train_size or train_size, train_size),
            test_size=min(spec.test_size or test_size, test_size),
            note=f"random samples of the shape of {spec.name}, which is not there",
            fingerprint="",
        )

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """The same `n` samples at every call."""
        self._check_sample(n)
        source = torch.Generator().manual_seed(0)
        x = torch.randn(n, *self.info.input_shape, generator=source)
        y = torch.randint(self.info.num_classes, (n,), generator=source)
        return x.to(self._device), y.to(self._device)

    def _train(self, *, share: Share, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:  # noqa: ARG002  # one batch
        x, y = self.sample(share.batch_size)
        part = share.of(share.batch_size)
        while True:
            yield x[part], y[part]

    def _test(self, *, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        raise NotImplementedError("costs are those of training")
