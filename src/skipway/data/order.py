"""Which samples a batch holds and which random numbers it uses: pure functions of a seed and a position.

Nothing here has a state to be saved: position k of a seed is the same whether or not the positions before it were
visited.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

__all__ = ["Order", "generator"]


def generator(purpose: str, *numbers: int) -> torch.Generator:
    """A generator on the processor whose numbers depend on `purpose` and `numbers` alone, and on all of them."""
    text = "/".join([purpose, *map(str, numbers)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


class Order:
    """An endless sequence of samples: one permutation after the other, each of all samples.

    Position p holds sample ``permutation(p // size)[p % size]``. A batch may hold the end of one permutation and the
    start of the next, so that no sample is ever left out and every batch is full.

    Args:
        size: samples in the set.
        seed: of the permutations.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self._epoch, self._permutation = -1, torch.empty(0, dtype=torch.int64)

    def permutation(self, epoch: int) -> Tensor:
        """The samples of one epoch in their order, int64."""
        if epoch != self._epoch:
            self._permutation = torch.randperm(self.size, generator=generator("order", self.seed, epoch))
            self._epoch = epoch
        return self._permutation

    def samples(self, first: int, count: int) -> Tensor:
        """The samples at positions `first` to `first + count - 1`, int64."""
        parts: list[Tensor] = []
        while count > 0:
            epoch, offset = divmod(first, self.size)
            part = self.permutation(epoch)[offset : offset + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
