"""From what is asked for to a data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from skipway.data.class_folders import class_folders
from skipway.data.folder_images import open_folders
from skipway.data.sources._registry import SOURCES
from skipway.errors import SkipwayError, UnknownNameError

if TYPE_CHECKING:
    from skipway.data.dataset import Dataset
    from skipway.spec import DataSpec

__all__ = ["data_names", "open_data"]


def data_names() -> list[str]:
    """The names of the data sets; beside them, the path of a folder of class folders serves as one."""
    return list(SOURCES)


def open_data(spec: DataSpec, *, device: str | torch.device = "cpu") -> Dataset:
    """Open a data set.

    Args:
        spec: which, and how its samples are made.
        device: where small sets live, and where all batches come out.

    Raises:
        UnknownNameError: no data set of that name; the text names what comes near.
        SkipwayError: its files are missing or damaged, or the spec asks for more than there is.
    """
    if spec.name in SOURCES:
        return SOURCES[spec.name](spec, torch.device(device))
    return open_folders(class_folders(_folder(spec)), spec, torch.device(device))


def _folder(spec: DataSpec) -> Path:
    """The folder that a name stands for."""
    folder = Path(spec.name).expanduser()
    if spec.name and folder.is_dir():
        if spec.root is not None:
            raise SkipwayError(f"root={spec.root!r} for the folder {spec.name}", "no root: the name is the folder")
        return folder
    if spec.name and (os.sep in spec.name or folder.exists()):
        what = "is no folder" if folder.exists() else "does not exist"
        raise SkipwayError(
            f"data {spec.name!r} {what}", "a folder of class folders, or one of: " + ", ".join(data_names())
        )
    raise UnknownNameError("data set", spec.name, data_names(), "the path of a folder of class folders")
