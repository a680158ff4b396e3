"""How a command fails: what is printed, and with which exit code."""

from __future__ import annotations

import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skipway.errors import ModelRunError, SkipwayError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FAULT", "FINDINGS", "INTERRUPTED", "NO_MODEL", "USAGE", "UsageProblemError", "as_usage", "report_failure"]

FINDINGS: Final = 1
NO_MODEL: Final = 2
USAGE: Final = 3
FAULT: Final = 70  # sysexits.h: a fault of the program itself; 1 would read as "findings"
INTERRUPTED: Final = 130

_OWN: Final = str(Path(__file__).parent.parent)
_LIBRARIES: Final = {"torch", "lightning_fabric"}  # that call the user's code for us
_MOST_FRAMES: Final = 8


class UsageProblemError(SkipwayError):
    """An option's value that no option of that name takes."""


@contextmanager
def as_usage(option: str) -> Iterator[None]:
    """Errors inside are the fault of what was typed behind `option`."""
    try:
        yield
    except ModelRunError:
        raise
    except SkipwayError as error:
        raise UsageProblemError(f"{option}: {error.given}", error.expected, error.hint) from error


def report_failure(error: SkipwayError) -> int:
    """Print an error for a person, the user's own traceback first; return the exit code."""
    if isinstance(error, ModelRunError) and error.__cause__ is not None:
        print(_own_traceback(error.__cause__), file=sys.stderr)
    print(f"error: {error}", file=sys.stderr)
    return USAGE if isinstance(error, UsageProblemError) else NO_MODEL


def _own_traceback(cause: BaseException) -> str:
    """The traceback of the user's code: frames of skipway, of the import system, of torch and Fabric left out."""
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if not _internal(frame.filename)]
    head = "Traceback (most recent call last):\n" if frames else ""
    cut = "  …\n" if len(frames) > _MOST_FRAMES else ""
    shown = "".join(traceback.format_list(frames[-_MOST_FRAMES:]))
    return head + cut + shown + "".join(traceback.format_exception_only(cause)).rstrip()


def _internal(filename: str) -> bool:
    if filename.startswith((_OWN, "<frozen importlib")):
        return True
    parts = Path(filename).parts
    return parts[-2:] == ("importlib", "__init__.py") or ("site-packages" in parts and bool(_LIBRARIES & set(parts)))
