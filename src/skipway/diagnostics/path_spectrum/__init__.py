"""The exact gradient by path length; results are read without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipway.diagnostics.path_spectrum.carry_out import path_spectrum as path_spectrum

__all__ = ["path_spectrum"]


def __getattr__(name: str) -> Any:
    if name != "path_spectrum":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skipway.diagnostics.path_spectrum.carry_out import path_spectrum

    return path_spectrum
