"""From what is asked for to a data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skipway.data.sources._registry import SOURCES

if TYPE_CHECKING:
    from skipway.data.dataset import Dataset
    from skipway.spec import DataSpec

__all__ = ["data_names", "open_data"]


def data_names() -> list[str]:
    """The names of the data sets; beside them, the path of a folder of class folders is one."""
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
    return SOURCES[spec.name](spec, torch.device(device))
