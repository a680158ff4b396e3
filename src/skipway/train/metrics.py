"""Metrics of a run: lines of JSON in a file, handed on to whoever else wants them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError
from skipway.report.files import writing
from skipway.report.jsonout import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lightning_fabric.loggers.logger import Logger

__all__ = ["MetricsFile"]


class MetricsFile:
    """A file of JSON lines, cut back to where the checkpoint saw its end.

    Args:
        path: of the file.
        length: bytes that are kept of what is there.
        listener: is given each line.
        loggers: Fabric's loggers, which get the numbers of each line.
    """

    def __init__(
        self,
        path: Path,
        *,
        length: int = 0,
        listener: Callable[[dict[str, Any]], None] | None = None,
        loggers: Sequence[Logger] = (),
    ) -> None:
        self._path, self._listener, self._loggers = path, listener, loggers
        with writing(path):
            # Without a buffer, so that what could not be written is not tried again when the file is closed.
            self._file = path.open("ab", buffering=0)
            size = self._file.seek(0, os.SEEK_END)
            if size < length:
                self._file.close()
                raise SkipwayError(
                    f"{path} has {size} bytes, the checkpoint saw {length}", "the file as it was written"
                )
            self._file.truncate(length)
            self._file.seek(0, os.SEEK_END)

    def write(self, line: dict[str, Any]) -> None:
        """Append a line; it is in the file when this returns, though not yet surely on the disk.

        Raises:
            SkipwayError: it cannot be written.
        """
        with writing(self._path):
            rest = (dumps(line, indent=None) + "\n").encode()
            while rest:
                rest = rest[self._file.write(rest) :]
        for logger in self._loggers:
            logger.log_metrics({k: v for k, v in line.items() if k != "step"}, step=line["step"])
        if self._listener is not None:
            self._listener(line)

    def synced(self) -> int:
        """Bring the file to the disk; its length in bytes."""
        with writing(self._path):
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file and tell the loggers."""
        self._file.close()
        for logger in self._loggers:
            logger.finalize("success")
