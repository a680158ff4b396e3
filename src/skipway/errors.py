"""Errors for people: what was given, what was expected, what to type instead."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MissingPackageError", "ModelRunError", "ShapeMismatchError", "SkipwayError", "UnknownNameError", "suggest"]


class SkipwayError(ValueError):
    """Base of all errors that skipway raises for something its user can mend."""

    def __init__(self, given: str, expected: str = "", hint: str = "") -> None:
        self.given, self.expected, self.hint = given, expected, hint
        lines = [given]
        if expected:
            lines.append(f"expected: {expected}")
        if hint:
            lines.append(f"try: {hint}")
        super().__init__("\n".join(lines))


class UnknownNameError(SkipwayError):
    """A name that no registry knows; suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        known = sorted(known)
        close = suggest(name, known)
        if close:
            expected = "did you mean " + " or ".join(repr(c) for c in close) + "?"
        else:
            shown = ", ".join(known[:12]) + (f", … ({len(known)} in all)" if len(known) > 12 else "")
            expected = f"one of: {shown}"
        super().__init__(f"unknown {kind} {name!r}", expected, hint)
        self.name, self.known = name, known


class ShapeMismatchError(SkipwayError):
    """Shortcut and branch do not fit; names both shapes and the projection that would mend it."""


class MissingPackageError(SkipwayError):
    """An optional package is needed and not installed; says what to type."""

    def __init__(self, package: str, needed_for: str, extra: str = "") -> None:
        install = f"pip install 'skipway[{extra}]'" if extra else f"pip install {package}"
        super().__init__(f"{needed_for} needs the package {package!r}, which is not installed", "", install)
        self.package = package


class ModelRunError(SkipwayError):
    """The inspected model could not be loaded or run; the model's own error is chained to it."""


def suggest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names nearest to `name`, nearest first; empty when none is near."""
    names = list(known)
    lowered = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=most, cutoff=0.6)
    return [lowered[c] for c in close]
