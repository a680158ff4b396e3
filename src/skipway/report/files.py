"""Files written whole or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from skipway.errors import SkipwayError
from skipway.report.jsonout import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["beside", "check_target", "write_atomically", "write_json", "write_text", "writing"]


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside it, bring it to the disk, then rename: whoever reads sees the old file or the new one.

    Args:
        path: the file; its folder is made where there is none.
        write: fills a file of the name that it is given.

    Raises:
        SkipwayError: the disk is full, or the folder may not be written.
    """
    temporary = beside(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(temporary)
            # Some writers give no permissions to others; what we write is as readable as any new file.
            temporary.chmod(_new_file_mode())
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, as `write_atomically` does."""
    write_atomically(path, lambda temporary: temporary.write_text(dumps(value) + "\n", encoding="utf-8"))


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write UTF-8 text to a file that a person named; a folder that is not there is a slip, and not made.

    Raises:
        SkipwayError: the file cannot be written; what stood there before is untouched.
    """
    target = Path(path)
    _check_place(target)
    write_atomically(target, lambda temporary: temporary.write_bytes(text.encode()))
    return target


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a path to which no report can or should be written, before the work is done that is to be written.

    Raises:
        SkipwayError: it is a folder, its folder does not exist, nothing may be written there, or a file that is no
            HTML page lies there.
    """
    target = Path(path)
    _check_place(target)
    with writing(target):
        if not os.access(target.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "no permission to write in its folder")
        if target.is_file() and not _is_html(target):
            raise SkipwayError(
                f"{target} holds something that is no HTML page, and would be lost", "a new file, or an old report",
                str(target.with_suffix(".html")),
            )  # fmt: skip


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Errors of the file system as errors for people.

    Raises:
        SkipwayError: no space left, no permission, or whatever else the system says.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        why = "no space left" if full else error.strerror or str(error)
        kept = "; what was there before is whole" if os.path.lexists(path) else ""
        expected, hint = (
            ("room on the disk", "free some space, then go on")
            if full
            else ("a folder that you may write", "another folder")
        )
        raise SkipwayError(f"cannot write {path}: {why}{kept}", expected, hint) from error


def beside(path: Path) -> Path:
    """Where a file is written before it gets its name: what a killed process left there, the next one writes over."""
    return path.with_name(f".{path.name}.new")


def _check_place(target: Path) -> None:
    with writing(target):
        if target.is_dir():
            raise SkipwayError(f"{target} is a folder", "the name of a file", str(target / "report.html"))
        if not target.parent.is_dir():
            raise SkipwayError(
                f"cannot write {target}: there is no folder {target.parent}", "an existing folder",
                f"mkdir -p {target.parent}",
            )  # fmt: skip


def _is_html(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(256).lstrip().lower()
    return not start or start.startswith((b"<!doctype html", b"<html"))


def _new_file_mode() -> int:
    """Permissions that the system gives a new file; the process's mask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(path: Path) -> None:
    """Bring a rename to the disk; systems without folder handles do it themselves."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
