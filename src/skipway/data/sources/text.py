"""Bytes of any files, each to be predicted from those before it; by default Python's standard library.

Shapes: N windows, T tokens of context, B bytes of a text.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING, Final

import torch

from skipway.data.dataset import Dataset, Share
from skipway.data.idle_options import refuse_image_options
from skipway.data.info import DataInfo
from skipway.data.order import generator
from skipway.data.sources._registry import register
from skipway.data.text_files import Texts, read_texts
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from skipway.spec import DataSpec

_BYTES: Final = 256


@register("text")
def open_text(spec: DataSpec, device: torch.device) -> Dataset:
    """Open text: inputs (N, T) and the bytes that follow them (N, T).

    Training windows start anywhere, drawn for each batch; test windows lie side by side. A subset is the beginning of
    a text, in which so many windows lie side by side.
    """
    refuse_image_options(spec)
    texts = read_texts(spec.root)
    train = _beginning(texts.train, spec.context, spec.train_size, "train")
    test = _beginning(texts.test, spec.context, spec.test_size, "test")
    return TextWindows(Texts(train, test, texts.note), spec.context, device)


def _beginning(text: Tensor, context: int, size: int | None, what: str) -> Tensor:
    windows = (len(text) - 1) // context
    if windows < 1:
        raise SkipwayError(f"{len(text)} bytes of {what} text", f"at least {context + 1}, for a context of {context}")
    if size is not None and size > windows:
        raise SkipwayError(
            f"{what}_size={size}, but the {what} text has {windows} windows of {context} bytes", f"at most {windows}"
        )
    return text if size is None else text[: size * context + 1]


class TextWindows(Dataset):
    """Windows of a text that lives on the device.

    Args:
        texts: for training and held out.
        context: T.
        device: where they live.
    """

    def __init__(self, texts: Texts, context: int, device: torch.device) -> None:
        self.context = context
        digest = hashlib.sha256(f"text {context}".encode())
        for text in (texts.train, texts.test):
            digest.update(f"{len(text)} ".encode())
            digest.update(text.numpy().data)
        self.info = DataInfo(
            name="text",
            task="text",
            num_classes=_BYTES,
            input_shape=(context,),
            input_dtype="int64",
            classes=(),
            train_size=(len(texts.train) - 1) // context,
            test_size=(len(texts.test) - 1) // context,
            note=texts.note,
            fingerprint=digest.hexdigest()[:32],
        )
        self._train_windows, self._test_windows = (
            text.to(device).unfold(0, context + 1, 1) for text in (texts.train, texts.test)
        )

    def _train(self, *, share: Share, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        places, size = len(self._train_windows), share.batch_size
        for step in itertools.count(start):
            starts = torch.randint(0, places, (size,), generator=generator("text", seed, step))
            yield _batch(self._train_windows, starts[share.of(size)])

    def _test(self, *, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        for starts in (torch.arange(self.info.test_size) * self.context).split(share.batch_size):
            yield _batch(self._test_windows, starts[share.of(len(starts))])

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """The same `n` training windows at every call."""
        self._check_sample(n)
        return _batch(
            self._train_windows, torch.randint(0, len(self._train_windows), (n,), generator=generator("text/sample"))
        )


def _batch(windows: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and the bytes after them, (N, T) int64 each; `windows` is a view (B − T, T + 1) of the text."""
    chosen = windows.index_select(0, starts.to(windows.device))
    return chosen[:, :-1].to(torch.int64), chosen[:, 1:].to(torch.int64)
