"""What a project says once for all: ``[tool.skipway]`` in its pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from skipway.errors import SkipwayError, UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ignored_rules"]

_KNOWN = ("ignore",)


def ignored_rules(rules: Sequence[str], folder: Path | None = None) -> tuple[str, ...]:
    """The rules that ``[tool.skipway] ignore = [...]`` of the nearest pyproject.toml leaves out.

    Args:
        rules: ids of all rules.
        folder: where to start; this one and its parents are searched. The current folder by default.

    Raises:
        SkipwayError: the file is no TOML, or says something that is not understood; the text names it.
        UnknownNameError: a rule that there is not.
    """
    start = (folder or Path.cwd()).resolve()
    file = next((p / "pyproject.toml" for p in (start, *start.parents) if (p / "pyproject.toml").is_file()), None)
    if file is None:
        return ()
    try:
        tool = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SkipwayError(f"{file} is no TOML: {error}", "a pyproject.toml that can be read") from None
    table = tool.get("skipway", {}) if isinstance(tool, dict) else tool
    if not isinstance(table, dict):
        where = "skipway" if isinstance(tool, dict) else "tool"
        raise SkipwayError(f"{where} = {table!r} in {file}", "a table: [tool.skipway]")
    for key in table:
        if key not in _KNOWN:
            raise UnknownNameError(f"key of [tool.skipway] in {file}", key, _KNOWN)
    ignore = table.get("ignore", [])
    if not isinstance(ignore, list) or not all(isinstance(rule, str) for rule in ignore):
        raise SkipwayError(f"ignore = {ignore!r} in {file}", 'a list of rule ids: ignore = ["norm-after-add"]')
    for rule in ignore:
        if rule not in rules:
            raise UnknownNameError(f"rule in {file}", rule, rules, "skipway list rules")
    return tuple(ignore)
