"""What every data set offers: endless training batches, one pass over the test samples, a few samples to look at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from skipway.data.info import DataInfo
    from skipway.data.preparation import Preparation

__all__ = ["Dataset", "Share"]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of every global batch that one process gets.

    Args:
        batch_size: of the global batch, over all processes.
        rank: of this process.
        world_size: number of processes.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise SkipwayError(f"batch_size={self.batch_size}", "at least 1")
        if not 0 <= self.rank < self.world_size:
            raise SkipwayError(f"rank={self.rank} of world_size={self.world_size}", "a rank in [0, world_size)")

    def of(self, size: int) -> slice:
        """This process' part of a batch of `size` samples; the parts in order are the batch."""
        return slice(size * self.rank // self.world_size, size * (self.rank + 1) // self.world_size)


class Dataset(ABC):
    """Samples as batches of tensors on one device.

    A training batch is a pure function of the set, the seed and the step, so an iterator can start at any step and
    nothing of it needs saving.

    `preparation` makes inputs of further images, as in a test; None for what is no set of images.
    """

    info: DataInfo
    preparation: Preparation | None = None

    def train(
        self, *, batch_size: int, seed: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Endless training batches: inputs and labels.

        Each epoch is a permutation of all training samples; a batch that reaches the end of one goes on with the next.

        Args:
            batch_size: of the global batch, over all processes; each gets ``batch_size / world_size`` samples of it.
            seed: of order and augmentation.
            start: number of batches to leave out; the k-th batch is the same whatever `start` is.
            rank: of this process.
            world_size: number of processes. Their parts, in order of rank, are the batch of a single process.

        Raises:
            SkipwayError: the batch is larger than the training set or not a multiple of `world_size`.
        """
        share = Share(batch_size=batch_size, rank=rank, world_size=world_size)
        if batch_size > self.info.train_size:
            raise SkipwayError(
                f"batch_size={batch_size}, but {self.info.name} has {self.info.train_size} training samples",
                f"at most {self.info.train_size}",
            )
        if batch_size % world_size:
            raise SkipwayError(
                f"batch_size={batch_size} over {world_size} processes", f"a multiple of {world_size}: the global batch"
            )
        if start < 0:
            raise SkipwayError(f"start={start}", "the number of batches to leave out, from 0")
        return self._train(share=share, seed=seed, start=start)

    def test(self, *, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All test samples once, in a fixed order and without augmentation; the last batch may be shorter.

        Every process gets as many batches as the others. Where the last batch has fewer samples than there are
        processes, some get an empty part of it.

        Args:
            batch_size: of the global batch, over all processes.
            rank: of this process.
            world_size: number of processes.
        """
        return self._test(share=Share(batch_size=batch_size, rank=rank, world_size=world_size))

    @abstractmethod
    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """The same `n` training samples at every call, without augmentation, for inspection.

        Raises:
            SkipwayError: the set has fewer.
        """

    @abstractmethod
    def _train(self, *, share: Share, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]: ...

    @abstractmethod
    def _test(self, *, share: Share) -> Iterator[tuple[Tensor, Tensor]]: ...

    def _check_sample(self, n: int) -> None:
        if not 1 <= n <= self.info.train_size:
            raise SkipwayError(
                f"{n} samples of {self.info.name}, which has {self.info.train_size}", f"1 to {self.info.train_size}"
            )
