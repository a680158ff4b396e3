"""Reading records back from JSON: strictly, and with words for what does not fit. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["checked", "measured", "number", "restored"]

# JSON has no such numbers; the report writes them as text.
_NOT_FINITE: Final = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def checked(data: object, names: Collection[str], what: str) -> None:
    """Make sure that `data` is an object with exactly the fields `names`.

    Raises:
        SkipwayError: it is something else, or a field is missing or unknown.
    """
    if not isinstance(data, Mapping):
        raise SkipwayError(f"{what}: {type(data).__name__}", f"an object with {', '.join(names)}")
    missing = [name for name in names if name not in data]
    unknown = [str(name) for name in data if name not in names]
    said = [f"without {', '.join(missing)}"] if missing else []
    if unknown:
        said.append(f"with unknown {', '.join(unknown)}")
    if said:
        raise SkipwayError(f"{what} {' and '.join(said)}", f"exactly {', '.join(names)}")


def number(value: object, what: str) -> float:
    """A number, also one that is not finite and was written as text.

    Raises:
        SkipwayError: it is something else.
    """
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise SkipwayError(f"{what}: {value!r}", "a number, 'nan', 'inf' or '-inf'")


def measured(value: object, what: str) -> float | None:
    """A number as `number` reads it, or None where nothing was measured."""
    return None if value is None else number(value, what)


def restored(value: Any) -> Any:
    """A value of some kind, where numbers that are not finite were written as text."""
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
