"""Scikit-learn's handwritten digits: 1,797 grey images of 8×8 pixels, part of the package, nothing to fetch.

Not augmented unless asked for: the digits fill their eight rows, so that a shift cuts them off, and a mirrored digit is
another sign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from skipway.data.idle_options import refuse_root
from skipway.data.image_tensors import open_images
from skipway.data.images import Images, ImageSplits
from skipway.data.sources._registry import register
from skipway.data.subset import balanced

if TYPE_CHECKING:
    from skipway.data.dataset import Dataset
    from skipway.spec import DataSpec

_TEST: Final = 360  # of 1,797: a fifth
_STEP: Final = 15  # the pixels are whole numbers from 0 to 16


@register("digits")
def open_digits(spec: DataSpec, device: torch.device) -> Dataset:
    """Open the digits; a fifth, balanced by class and drawn once, is for testing."""
    from sklearn.datasets import load_digits

    refuse_root(spec)
    found = load_digits()
    pixels = torch.from_numpy(found.images).mul(_STEP).to(torch.uint8).unsqueeze(-1)
    labels = torch.from_numpy(found.target).to(torch.int64)
    order = balanced(labels, "digits")
    test, train = order[:_TEST].sort().values, order[_TEST:].sort().values
    splits = ImageSplits(
        train=Images(pixels[train], labels[train]),
        test=Images(pixels[test], labels[test]),
        num_classes=10,
        classes=tuple("0123456789"),
        note="scikit-learn's digits, a fifth kept for testing, drawn once and balanced by class",
    )
    return open_images(splits, spec, auto="none", device=device)
