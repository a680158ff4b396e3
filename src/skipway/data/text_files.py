"""The bytes of many files as two texts: one for training, one held out.

Shapes: B bytes of a text.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from skipway.data.files import readable
from skipway.data.order import generator
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Texts", "read_texts"]

_HELD_OUT: Final = 10  # every 10th file, or the last tenth of the bytes
_LEFT_OUT: Final = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Texts:
    """Bytes (B,) uint8 of both texts, and where they are from."""

    train: Tensor
    test: Tensor
    note: str


def read_texts(root: str | None) -> Texts:
    """Read all files of a folder, or of the Python standard library.

    Every 10th file in order of its path is held out; of fewer than ten files, the last tenth of their bytes. The files
    follow each other in an order drawn once, so that the beginning of a text is a fair sample of it.

    Args:
        root: a file or a folder; None for the standard library's own ``*.py``, without its tests.

    Raises:
        SkipwayError: there is no such folder, no file in it, or a file may not be read.
    """
    files, what = _library() if root is None else _below(Path(root).expanduser())
    contents = []
    for path in files:
        with readable(path):
            contents.append(np.fromfile(path, dtype=np.uint8))
    if len(files) < _HELD_OUT:
        whole = np.concatenate(contents)
        cut = len(whole) - len(whole) // _HELD_OUT
        return Texts(torch.from_numpy(whole[:cut]), torch.from_numpy(whole[cut:]), f"{what}; last tenth held out")
    held_out = contents[_HELD_OUT - 1 :: _HELD_OUT]
    kept = [content for k, content in enumerate(contents) if k % _HELD_OUT != _HELD_OUT - 1]
    return Texts(_join(kept, "text/train"), _join(held_out, "text/test"), f"{what}; every 10th file held out")


def _library() -> tuple[list[Path], str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(folder.rglob("*.py")) if not _LEFT_OUT & set(p.relative_to(folder).parts)]
    return files, f"{len(files)} files of the Python standard library {sysconfig.get_python_version()}"


def _below(root: Path) -> tuple[list[Path], str]:
    with readable(root):
        files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else []
    if not files:
        what = "an empty folder" if root.is_dir() else "no such file or folder"
        raise SkipwayError(
            f"root={str(root)!r} of text: {what}", "a file, or a folder with files", "no root: Python's own library"
        )
    return files, f"{len(files)} file{'s' if len(files) > 1 else ''} of {root}"


def _join(contents: list[np.ndarray], purpose: str) -> Tensor:
    order = torch.randperm(len(contents), generator=generator(purpose)).tolist()
    return torch.from_numpy(np.concatenate([contents[k] for k in order]))
