"""CIFAR's original files: pickled batches, checked and then read by an unpickler that builds arrays and nothing else.

Shapes: N images.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from skipway.data.files import check_md5, readable
from skipway.data.images import Images, ImageSplits
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["BatchLayout", "restricted_loads"]

_RECONSTRUCT: Final = np.empty(0).__reduce__()[0]  # numpy keeps it under a name that has moved
_ALLOWED: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed") from None


def restricted_loads(content: bytes) -> Any:
    """Unpickle plain containers, strings, numbers and numpy arrays.

    Raises:
        pickle.UnpicklingError: the content asks for anything else.
    """
    return _Unpickler(io.BytesIO(content), encoding="latin1").load()


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """The folder that torchvision unpacks; names and checksums of the files are torchvision's own lists.

    Args:
        name: torchvision's class.
        folder: the folder's name, here so that torchvision is imported only where it is found (that takes a second).
        labels: key of the labels in a batch.
        num_classes: labels are in [0, num_classes).
    """

    name: Literal["CIFAR10", "CIFAR100"]
    folder: str
    labels: str
    num_classes: int

    @property
    def source(self) -> Any:
        """Torchvision's class, of which only the constants are used."""
        from torchvision import datasets

        return getattr(datasets, self.name)

    @property
    def words(self) -> str:
        """The layout in words."""
        return f"{self.folder}/ as torchvision unpacks it"

    def read(self, folder: Path) -> ImageSplits | None:
        """All images; None if the layout is not there.

        Raises:
            SkipwayError: a file is missing, or its checksum is not the published one.
        """
        base = folder / self.folder
        if not base.is_dir():
            return None
        source = self.source
        names = _load(base / source.meta["filename"], source.meta["md5"])[source.meta["key"]]
        return ImageSplits(
            train=self._images(base, source.train_list),
            test=self._images(base, source.test_list),
            num_classes=self.num_classes,
            classes=tuple(names),
            note="the original pickled batches, checksums compared",
        )

    def _images(self, base: Path, files: Sequence[Sequence[str]]) -> Images:
        batches = [_load(base / name, md5) for name, md5 in files]
        planes = torch.from_numpy(np.concatenate([batch["data"] for batch in batches]))
        labels = torch.tensor([label for batch in batches for label in batch[self.labels]], dtype=torch.int64)
        return Images(planes.view(-1, 3, 32, 32).permute(0, 2, 3, 1).contiguous(), labels)


def _load(path: Path, md5: str) -> dict[str, Any]:
    with readable(path):
        content = path.read_bytes()
    check_md5(path, content, md5)
    try:
        found: dict[str, Any] = restricted_loads(content)
    except pickle.UnpicklingError as error:
        raise SkipwayError(f"{path} is refused: {error}", "a pickle of arrays, lists and strings") from error
    return found
