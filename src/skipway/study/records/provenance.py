"""Which commit of the code stands behind a result, where it ran from a repository."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = ["code_commit", "file_commit"]

_SOURCE: Final = Path(__file__).parents[2]


@lru_cache(maxsize=1)
def code_commit() -> str:
    """The commit that is checked out, with ``+`` where the source differs from it; empty outside a repository.

    Asked once for the whole process: a commit that is made meanwhile is not the code that runs.
    """
    # Installed beside somebody else's project, the source may lie inside that project's repository.
    tracked = _git("ls-files", "--", str(_SOURCE / "__init__.py"))
    found = _git("rev-parse", "--short=10", "HEAD") if tracked else ""
    return found + "+" * bool(found and _git("status", "--porcelain", "--", str(_SOURCE)))


def file_commit(path: Path) -> str:
    """The last commit that changed a file, with ``+`` where the file differs from it; empty where there is none."""
    found = _git("log", "-1", "--format=%h", "--abbrev=10", "--", str(path))
    return found + "+" * bool(found and _git("status", "--porcelain", "--", str(path)))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # fixed arguments and paths of our own
            ["git", "-C", str(_SOURCE), *arguments],  # noqa: S607  # git, wherever it is
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
