"""What a data set is, in plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DataInfo"]


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """What a data set is, as it was opened: after resizing and after taking subsets.

    Args:
        name: the set's name, or the folder's path as it was given.
        task: ``"image"``, ``"text"`` (the next byte at each position) or ``"sequence"`` (a token at each position).
        num_classes: labels are integers in [0, num_classes).
        input_shape: of one sample: (C, H, W) of images, (T,) of tokens.
        input_dtype: ``"float32"`` or ``"int64"``.
        classes: names of the classes in the order of their labels; empty where the files carry none.
        train_size: training samples in use. For text: windows that do not overlap.
        test_size: test samples in use.
        note: where the samples come from, in words.
        fingerprint: hexadecimal; of the content in use and of the options that change samples.
    """

    name: str
    task: Literal["image", "text", "sequence"]
    num_classes: int
    input_shape: tuple[int, ...]
    input_dtype: Literal["float32", "int64"]
    classes: tuple[str, ...]
    train_size: int
    test_size: int
    note: str
    fingerprint: str
