"""ImageNet (arXiv 1409.0575), or any set in its folders: ``train/CLASS/*.JPEG`` and ``val/CLASS/*.JPEG``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.data.class_folders import ClassFolders, class_folders, split_folders
from skipway.data.image_files import ImageFiles
from skipway.data.locate import read_first
from skipway.data.sources._registry import register

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from skipway.data.dataset import Dataset
    from skipway.spec import DataSpec

_SIDE: Final = 224
_TESTS: Final = ("val", "test")  # the published test images have no labels


@register("imagenet")
def open_imagenet(spec: DataSpec, device: torch.device) -> Dataset:
    """Open ImageNet; images are read as they are needed, cut at random places and scales, and mirrored."""
    folders = read_first(spec, "imagenet", [_Split()])
    return ImageFiles(folders, spec, side=spec.image_size or _SIDE, mode="RGB", device=device)


@dataclass(frozen=True)
class _Split:
    words: str = "train/CLASS/*.JPEG and val/CLASS/*.JPEG"

    def read(self, folder: Path) -> ClassFolders | None:
        return None if split_folders(folder, _TESTS) is None else class_folders(folder, _TESTS)
