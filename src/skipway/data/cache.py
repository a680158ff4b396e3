"""Decoded images kept on disk, so that the files of a set are decoded once.

The cache is a convenience: one that cannot be read is built again, one that cannot be written is done without.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from skipway.data.files import readable
from skipway.data.images import Images, ImageSplits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["cache_folder", "cached"]

_VERSION: Final = 3  # of what is written; raise it when decoding changes
_TENSORS: Final = ("train_pixels", "train_labels", "test_pixels", "test_labels")


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/skipway``, or ``~/.cache/skipway``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "skipway"


def cached(files: Iterable[Path], options: str, build: Callable[[], ImageSplits]) -> ImageSplits:
    """What `build` returns, from the cache where it holds that for the same files and options.

    Args:
        files: all that `build` reads; a changed name, size or time of modification is a changed file.
        options: all else that it depends on.
        build: decodes the files.
    """
    path = cache_folder() / "decoded" / f"{_key(files, options)}.safetensors"
    found = _read(path)
    if found is None:
        found = build()
        _write(path, found)
    return found


def _key(files: Iterable[Path], options: str) -> str:
    digest = hashlib.sha256(f"{_VERSION} {options}".encode())
    for file in sorted(files):
        with readable(file):
            stat = file.stat()
        # The name as it was given says the class of a link to elsewhere; where it leads to says which file that is.
        digest.update(b"\n" + os.fsencode(file.absolute()) + b"\t" + os.fsencode(file.resolve()))
        digest.update(f"\t{stat.st_size}\t{stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]


def _read(path: Path) -> ImageSplits | None:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = [file.get_tensor(name) for name in _TENSORS]
            words = json.loads((file.metadata() or {})["words"])
        return ImageSplits(
            train=Images(*tensors[:2]),
            test=Images(*tensors[2:]),
            num_classes=words["num_classes"],
            classes=tuple(words["classes"]),
            note=words["note"],
        )
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None


def _write(path: Path, splits: ImageSplits) -> None:
    tensors = (splits.train.pixels, splits.train.labels, splits.test.pixels, splits.test.labels)
    words = {"num_classes": splits.num_classes, "classes": splits.classes, "note": splits.note}
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        os.close(handle)
        named = {name: tensor.contiguous() for name, tensor in zip(_TENSORS, tensors, strict=True)}
        save_file(named, temporary, metadata={"words": json.dumps(words)})
        Path(temporary).replace(path)  # another process sees the whole file or none
    except (OSError, SafetensorError):
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
