"""Reverse eight tokens out of eight: a task that needs the signal to get through, made on the fly.

Shapes: N sequences, T = 8 tokens.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, Final

import torch

from skipway.data.dataset import Dataset, Share
from skipway.data.idle_options import refuse_image_options, refuse_root
from skipway.data.info import DataInfo
from skipway.data.order import generator
from skipway.data.sources._registry import register
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from skipway.spec import DataSpec

VOCABULARY: Final = 8
LENGTH: Final = 8
_TEST: Final = 1024


@register("reverse")
def open_reverse(spec: DataSpec, device: torch.device) -> Dataset:
    """Open the task: inputs (N, 8) of tokens 0 to 7, labels the same in reverse order; chance loss ln 8 = 2.079."""
    refuse_image_options(spec)
    refuse_root(spec)
    if spec.train_size is not None:
        raise SkipwayError(
            f"train_size={spec.train_size} for reverse, whose training samples are made on the fly", "no train_size"
        )
    return ReverseTokens(spec.test_size or _TEST, device)


class ReverseTokens(Dataset):
    """Random sequences and their reverse.

    Args:
        test_size: sequences in the fixed test set.
        device: where the tokens come out.
    """

    def __init__(self, test_size: int, device: torch.device) -> None:
        self.device = device
        self._held_out = _sequences(generator("reverse/test"), test_size)
        self.info = DataInfo(
            name="reverse",
            task="sequence",
            num_classes=VOCABULARY,
            input_shape=(LENGTH,),
            input_dtype="int64",
            classes=tuple(str(token) for token in range(VOCABULARY)),
            train_size=VOCABULARY**LENGTH,
            test_size=test_size,
            note="random tokens to be put in reverse order, made on the fly, the test set once and for all",
            fingerprint=hashlib.sha256(self._held_out.numpy().data).hexdigest()[:32],
        )

    def _train(self, *, share: Share, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step in itertools.count(start):
            tokens = _sequences(generator("reverse", seed, step), share.batch_size)
            yield self._batch(tokens[share.of(share.batch_size)])

    def _test(self, *, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        for tokens in self._held_out.split(share.batch_size):
            yield self._batch(tokens[share.of(len(tokens))])

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """The same `n` sequences at every call."""
        self._check_sample(n)
        return self._batch(_sequences(generator("reverse/sample"), n))

    def _batch(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        tokens = tokens.to(self.device)
        return tokens, tokens.flip(1)


def _sequences(source: torch.Generator, n: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (n, LENGTH), generator=source)
