"""What a model loses without some of its units; results are read without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipway.units.lesion.carry_out import lesion as lesion

__all__ = ["lesion"]


def __getattr__(name: str) -> Any:
    if name != "lesion":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skipway.units.lesion.carry_out import lesion

    return lesion
