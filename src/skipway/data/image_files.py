"""Image sets too large for memory: read, cut and resized by worker processes as they are needed.

Which image a batch holds is a function of seed and position; the random numbers of its augmentation are seeded by
seed, epoch and image, whichever process draws them.

Shapes: N images in a batch, C channels, S side.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from skipway.cores import cores
from skipway.data.dataset import Dataset, Share
from skipway.data.decode import Mode, as_array, in_mode, reported
from skipway.data.info import DataInfo
from skipway.data.order import Order, generator
from skipway.data.preparation import Preparation, middle_view
from skipway.data.statistics import statistics
from skipway.data.subset import balanced, subset
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from skipway.data.class_folders import ClassFolders, Labelled
    from skipway.spec import DataSpec

__all__ = ["ImageFiles"]

_STATISTICS: Final = 1024  # training images from which mean and deviation are computed
_MOST_WORKERS: Final = 8

_Key = tuple[int, int]  # sample and epoch
_Batch = Union["tuple[Tensor, Tensor]", "tuple[str, str, str]"]  # (N, S, S, C) uint8 and labels, or an error's texts
_Transform = Callable[[Image.Image], Image.Image]


class ImageFiles(Dataset):
    """Images read from files: RandomResizedCrop and flip for training, resize and centre crop for testing.

    Args:
        folders: the files.
        spec: what is asked for; of `augment`, ``"crop"`` is RandomResizedCrop without the flip.
        side: S.
        mode: ``"RGB"``, or ``"L"`` for grey.
        device: where batches come out.
        workers: processes that decode; None for one a core, 8 at most.
    """

    def __init__(
        self,
        folders: ClassFolders,
        spec: DataSpec,
        *,
        side: int,
        mode: Mode,
        device: torch.device,
        workers: int | None = None,
    ) -> None:
        self.device, self._mode, self._side = device, mode, side
        self._workers = min(_MOST_WORKERS, cores()) if workers is None else workers
        self._augment = "crop-flip" if spec.augment == "auto" else spec.augment
        self._files = _taken(folders.train, spec.train_size, "train", spec.name)
        self._test_files = _taken(folders.test, spec.test_size, "test", spec.name)
        self._fixed = balanced(torch.tensor([label for _, label in self._files]), "sample")
        self.preparation = made = self._measure(folders.train, spec)
        self._shift, self._scale = (t.permute(2, 0, 1)[None].to(self.device) for t in (made.shift, made.scale))
        self.info = DataInfo(
            name=spec.name,
            task="image",
            num_classes=len(folders.classes),
            input_shape=(3 if mode == "RGB" else 1, side, side),
            input_dtype="float32",
            classes=folders.classes,
            train_size=len(self._files),
            test_size=len(self._test_files),
            note=f"{folders.note}, read as needed; mean and deviation of {min(_STATISTICS, len(folders.train))} images",
            fingerprint=self._fingerprint(folders.root),
        )

    def _measure(self, files: Sequence[Labelled], spec: DataSpec) -> Preparation:
        """How inputs are made of the images: with the mean and the deviation of some of them."""
        chosen = balanced(torch.tensor([label for _, label in files]), "statistics")[:_STATISTICS]
        loader = self._loader(files, middle_view(self._side), _fixed(chosen.split(32)))
        numbers = statistics(torch.cat([pixels for pixels, _ in _checked(loader)]), spec.normalize)
        return Preparation(
            mode=self._mode, height=self._side, width=self._side, margin=True,
            shift=numbers.mean.float(), scale=(1 / numbers.std).float(),
        )  # fmt: skip

    def _fingerprint(self, root: Path) -> str:
        """Of the files' places and labels, and of mean and deviation; reading all content may take hours.

        Not of their sizes: a damaged file that stopped a run may be replaced, and the run goes on.
        """
        digest = hashlib.sha256(f"{self._augment} {self._side} {self._mode}".encode())
        for number in (self._shift, self._scale):
            digest.update(number.cpu().contiguous().numpy().data)
        for path, label in (*self._files, *self._test_files):
            digest.update(b"\n" + os.fsencode(Path(path).relative_to(root).as_posix()) + f"\t{label}".encode())
        return digest.hexdigest()[:32]

    def _train(self, *, share: Share, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        side = self._side
        transform = middle_view(side) if self._augment == "none" else _cut(side, self._augment == "crop-flip")
        keys = _TrainKeys(len(self._files), share, seed, start)
        return self._batches(self._loader(self._files, transform, keys, seed=seed))

    def _test(self, *, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        batches = torch.arange(len(self._test_files)).split(share.batch_size)
        parts = [batch[share.of(len(batch))] for batch in batches]
        return self._batches(self._loader(self._test_files, middle_view(self._side), _fixed(parts)))

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """The same `n` training images at every call, balanced by class, cut as for testing."""
        self._check_sample(n)
        return next(self._batches(self._loader(self._files, middle_view(self._side), _fixed([self._fixed[:n]]))))

    def _loader(
        self, files: Sequence[Labelled], transform: _Transform, keys: Iterable[list[_Key]], seed: int = 0
    ) -> DataLoader[_Batch]:
        return DataLoader(
            _Files(files, transform, self._mode, self._side, seed),
            batch_sampler=keys,
            collate_fn=_as_it_is,
            num_workers=self._workers,
            generator=torch.Generator(),  # else the loader draws from the global one
            pin_memory=self.device.type == "cuda",
        )

    def _batches(self, loader: DataLoader[_Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        for pixels, labels in _checked(loader):
            images = pixels.to(self.device, non_blocking=True).permute(0, 3, 1, 2).float()
            yield images.sub_(self._shift).mul_(self._scale), labels.to(self.device, non_blocking=True)


def _taken(files: Sequence[Labelled], size: int | None, what: str, name: str) -> Sequence[Labelled]:
    kept = subset(torch.tensor([label for _, label in files]), size, what, name)
    return files if kept is None else [files[k] for k in kept.tolist()]


def _fixed(batches: Iterable[Tensor]) -> list[list[_Key]]:
    return [[(k, 0) for k in batch.tolist()] for batch in batches]


@dataclass(frozen=True)
class _TrainKeys:
    """The samples of every batch from `start` on, each with its epoch."""

    size: int
    share: Share
    seed: int
    start: int

    def __iter__(self) -> Iterator[list[_Key]]:
        order, part = Order(self.size, self.seed), self.share.of(self.share.batch_size)
        for step in itertools.count(self.start):
            first, count = step * self.share.batch_size + part.start, part.stop - part.start
            epochs = [position // self.size for position in range(first, first + count)]
            yield list(zip(order.samples(first, count).tolist(), epochs, strict=True))


@dataclass(frozen=True)
class _Files(TorchDataset[_Batch]):
    """What the workers do; an error travels as its texts, since a worker's exception would lose its form."""

    files: Sequence[Labelled]
    transform: _Transform
    mode: Mode
    side: int
    seed: int

    def __getitems__(self, keys: list[_Key]) -> _Batch:
        channels = 3 if self.mode == "RGB" else 1
        pixels = torch.empty((len(keys), self.side, self.side, channels), dtype=torch.uint8)
        kept = torch.default_generator.get_state()  # torchvision's transforms draw from the global generator
        try:
            for row, key in zip(pixels, keys, strict=True):
                row.copy_(self._image(key))
        except SkipwayError as error:
            return error.given, error.expected, error.hint
        finally:
            torch.default_generator.set_state(kept)
        return pixels, torch.tensor([self.files[k][1] for k, _ in keys], dtype=torch.int64)

    def _image(self, key: _Key) -> Tensor:
        path = self.files[key[0]][0]
        torch.default_generator.set_state(generator("augment", self.seed, key[1], key[0]).get_state())
        with reported(path), Image.open(path) as image:
            return torch.from_numpy(as_array(self.transform(in_mode(image, self.mode)), self.mode))


def _as_it_is(batch: Any) -> Any:  # what `__getitems__` returns is a batch already
    return batch


def _checked(loader: DataLoader[_Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in loader:
        if len(batch) == 3:
            raise SkipwayError(*batch)
        yield batch


def _cut(side: int, flip: bool) -> _Transform:
    """For training: a part at a random place, scale and aspect."""
    from torchvision.transforms import v2

    parts = [v2.RandomResizedCrop(side, antialias=True), *([v2.RandomHorizontalFlip()] if flip else [])]
    cut: _Transform = v2.Compose(parts)
    return cut
