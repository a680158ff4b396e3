"""Metrics of a run: lines of JSON in a file, handed on to whoever else wants them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from skipway.report.jsonout import dumps
from skipway.train.folder import writing

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
            self._file = path.open("ab")
            self._file.truncate(length)

    def write(self, line: dict[str, Any]) -> None:
        """Append a line; it is in the file when this returns, though not yet surely on the disk.

        Raises:
            SkipwayError: it cannot be written.
        """
        with writing(self._path):
            self._file.write((dumps(line, indent=None) + "\n").encode())
            self._file.flush()
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
