"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from skipway.errors import SkipwayError

__all__ = ["check_target", "new_file_mode", "write_text"]


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write UTF-8 text to `path`: a reader sees the old file or the new one, never a half.

    Raises:
        SkipwayError: the file cannot be written; what stood there before is untouched.
    """
    target = Path(path)
    if target.is_dir():
        raise _refused(target, IsADirectoryError())
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise _refused(target, error) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(new_file_mode())  # a temporary file is for its owner alone
        Path(name).replace(target)
    except OSError as error:
        raise _refused(target, error) from error
    finally:
        with suppress(FileNotFoundError):  # it has become the target
            Path(name).unlink()
    return target


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a path to which no report can or should be written, before the work is done that is to be written.

    Raises:
        SkipwayError: it is a folder, its folder does not exist, nothing may be written there, or a file that is no
            HTML page lies there.
    """
    target = Path(path)
    if target.is_dir():
        raise _refused(target, IsADirectoryError())
    if not target.parent.is_dir():
        raise _refused(target, FileNotFoundError())
    if not os.access(target.parent, os.W_OK):
        raise _refused(target, PermissionError(0, "no permission to write in its folder"))
    if target.is_file() and not _is_html(target):
        raise SkipwayError(
            f"{target} holds something that is no HTML page, and would be lost", "a new file, or an old report",
            str(target.with_suffix(".html")),
        )  # fmt: skip


def _is_html(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(256).lstrip().lower()
    return not start or start.startswith((b"<!doctype html", b"<html"))


def new_file_mode() -> int:
    """Permissions that the system gives a new file; the process's mask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def _refused(target: Path, error: OSError) -> SkipwayError:
    reason = error.strerror or str(error)
    if target.is_dir():
        return SkipwayError(f"{target} is a folder", "the name of a file", str(target / "report.html"))
    if not target.parent.exists():
        return SkipwayError(
            f"{target} cannot be written: there is no folder {target.parent}", "an existing folder",
            f"mkdir -p {target.parent}",
        )  # fmt: skip
    return SkipwayError(f"{target} cannot be written: {reason}", "a file in a folder that can be written to")
