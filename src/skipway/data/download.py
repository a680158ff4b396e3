"""Files that torchvision knows how to fetch."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["fetch_archive", "fetch_resources"]


def fetch_archive(source: Any, folder: Path) -> None:
    """Fetch, check and unpack the one archive of a torchvision class.

    Not by way of the class itself, which unpickles what it has fetched.

    Args:
        source: the class, e.g. ``torchvision.datasets.CIFAR10``.
        folder: in which to unpack.

    Raises:
        SkipwayError: the archive cannot be fetched; says what to do by hand.
    """
    from torchvision.datasets.utils import download_and_extract_archive

    try:
        download_and_extract_archive(source.url, str(folder), filename=source.filename, md5=source.tgz_md5)
    except (URLError, OSError, RuntimeError, zipfile.BadZipFile, EOFError) as error:
        raise _failed(source, error, f"fetch {source.url} by hand and unpack it in {folder}") from error


def fetch_resources(source: Any, folder: Path) -> None:
    """Fetch the files of a torchvision class that has several.

    Args:
        source: the class, e.g. ``torchvision.datasets.FashionMNIST``.
        folder: in which its folder is to lie.

    Raises:
        SkipwayError: they cannot be fetched; says what to do by hand.
    """
    try:
        source(str(folder), download=True)
    except (URLError, OSError, RuntimeError, EOFError) as error:
        names = ", ".join(name for name, _ in source.resources)
        place = folder / source.__name__ / "raw"
        raise _failed(source, error, f"fetch {names} from {source.mirrors[0]} by hand into {place}") from error


def _failed(source: Any, error: Exception, by_hand: str) -> SkipwayError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return SkipwayError(f"{source.__name__} could not be fetched: {reason}", "a connection to the network", by_hand)
