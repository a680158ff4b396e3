"""Where the files of a set may lie, and what is said when they do not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from skipway.data.cache import cache_folder
from skipway.data.files import readable
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skipway.spec import DataSpec

__all__ = ["Layout", "download_folder", "places", "read_first"]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Layout(Protocol[T_co]):
    """One way in which the files of a set are laid out."""

    @property
    def words(self) -> str:
        """The layout in words."""

    def read(self, folder: Path) -> T_co | None:
        """What lies in `folder`; None if the layout is not there."""


def places(spec: DataSpec, name: str) -> list[Path]:
    """Folders in which the files of a set are looked for, whether they exist or not.

    Raises:
        SkipwayError: the spec names a folder that is none.
    """
    if spec.root is not None:
        root = Path(spec.root).expanduser()
        if not root.is_dir() and not (spec.download and not root.exists()):
            what = "a file" if root.exists() else "no such folder"
            raise SkipwayError(f"root={spec.root!r} of {name}: {what}", f"a folder that holds the files of {name}")
        roots = [root]
    else:
        given = os.environ.get("SKIPWAY_DATA")
        roots = [Path(given).expanduser()] if given else []
        roots += [Path("data"), download_folder(spec)]
    return [place for root in roots for place in (root, root / name)]


def download_folder(spec: DataSpec) -> Path:
    """Where files are fetched to."""
    return cache_folder() / "data" if spec.root is None else Path(spec.root).expanduser()


def read_first(
    spec: DataSpec, name: str, layouts: Sequence[Layout[T]], download: Callable[[Path], None] | None = None
) -> T:
    """Read a set from the first place and layout that has it.

    Args:
        spec: names the folder, if it does, and says whether missing files may be fetched.
        name: of the set, and of the folder that may hold it.
        layouts: in the order in which they are tried.
        download: fetches the files into a folder; None if they cannot be fetched.

    Raises:
        SkipwayError: the set is not there; the text says where it was looked for, and how to get it.
    """
    folders = places(spec, name)
    found = _first(folders, layouts)
    if found is None and spec.download and download is not None:
        folder = download_folder(spec)
        download(folder)
        found = _first([folder], layouts)
    if found is not None:
        return found
    raise SkipwayError(
        f"no files of {name} in {', '.join(map(str, folders))}",
        ", or ".join(layout.words for layout in layouts),
        "--root FOLDER (root=FOLDER in Python) or the environment variable SKIPWAY_DATA, naming where they lie"
        + (", or --download (download=True) to fetch them" if download is not None else ""),
    )


def _first(folders: Sequence[Path], layouts: Sequence[Layout[T]]) -> T | None:
    for folder in folders:
        with readable(folder):
            for layout in layouts if folder.is_dir() else ():
                found = layout.read(folder)
                if found is not None:
                    return found
    return None
