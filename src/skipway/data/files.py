"""Files that may be missing, forbidden or damaged, and what is said then."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["check_labels", "check_md5", "readable"]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Reading `path` inside; what the system refuses becomes an error that names the file.

    Raises:
        SkipwayError: the file is missing, or may not be read.
    """
    try:
        yield
    except PermissionError as error:
        refused = error.filename or path
        raise SkipwayError(
            f"no permission to read {refused}", "a file that you may read", f"chmod u+r {refused}"
        ) from error
    except FileNotFoundError as error:
        raise SkipwayError(
            f"{error.filename or path} is missing", "the whole set of files", "fetch it again"
        ) from error


def check_md5(path: Path, content: bytes, expected: str) -> None:
    """Compare a file's content with its published checksum.

    Raises:
        SkipwayError: they differ.
    """
    actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if actual != expected:
        raise SkipwayError(
            f"{path} is damaged: its MD5 checksum is {actual}", expected, "delete the file and fetch it again"
        )


def check_labels(path: Path, labels: np.ndarray, num_classes: int) -> None:
    """Check that every label is a class.

    Raises:
        SkipwayError: one is not; the first one is named by its row.
    """
    bad = np.flatnonzero(~((labels >= 0) & (labels < num_classes)))  # also NaN, which stands for none
    if len(bad):
        raise SkipwayError(f"{path}, row {bad[0]}: label {labels[bad[0]]}", f"a class from 0 to {num_classes - 1}")
