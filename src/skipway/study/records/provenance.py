"""Which commit of the code stands behind a result, where it ran from a repository."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = ["code_commit", "keyword_commit"]

_SOURCE: Final = Path(__file__).parents[2]
_NOT_COMMITTED: Final = 40 * "0"


@lru_cache(maxsize=1)
def code_commit() -> str:
    """The commit that is checked out, with ``+`` where the source differs from it; empty outside a repository.

    Asked once for the whole process: a commit that is made meanwhile is not the code that runs.
    """
    # Installed beside somebody else's project, the source may lie inside that project's repository.
    tracked = _git("ls-files", "--", str(_SOURCE / "__init__.py"))
    found = _git("rev-parse", "--short=10", "HEAD") if tracked else ""
    return found + "+" * bool(found and _git("status", "--porcelain", "--", str(_SOURCE)))


def keyword_commit(path: Path, keyword: str) -> str:
    """The last commit that changed what a keyword is given in a file, ``+`` where it was changed since.

    So a criterion stays as old as it is when the words beside it are changed. Empty where there is no commit, or no
    such keyword.

    Args:
        path: of a Python file.
        keyword: of a call in it, the only one of that name.
    """
    keywords = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.keyword))
    given = next((one for one in keywords if one.arg == keyword), None)
    if given is None:
        return ""
    blamed = _git("blame", "--line-porcelain", f"-L{given.lineno},{given.end_lineno}", "--", str(path))
    blocks: list[tuple[str, str]] = re.findall(
        r"^([0-9a-f]{40}) .*?^committer-time (\d+)$", blamed, re.MULTILINE | re.DOTALL
    )
    committed = {commit: int(when) for commit, when in blocks if commit != _NOT_COMMITTED}
    if not committed:
        return ""
    return max(committed, key=lambda commit: committed[commit])[:10] + "+" * (len(committed) < len(dict(blocks)))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # fixed arguments and paths of our own
            ["git", "-C", str(_SOURCE), *arguments],  # noqa: S607  # git, wherever it is
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
