"""Options of designs: a field with the sentence that lists show, and the check of what stands in it."""

from __future__ import annotations

import math
from dataclasses import field, fields
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

from skipway.errors import SkipwayError

__all__ = ["check_options", "option", "option_error", "option_hints", "type_text"]


def option(default: Any, help: str) -> Any:  # noqa: A002  # the field's own word for it
    """A dataclass field with the sentence that lists show."""
    return field(default=default, metadata={"help": help})


def option_hints(design: type[Any]) -> dict[str, Any]:
    """Types of a design's options by name."""
    return get_type_hints(design)


def type_text(hint: Any) -> str:
    """A type in words."""
    return "|".join(map(str, get_args(hint))) if get_origin(hint) is Literal else str(hint.__name__)


def option_error(design: str, name: str, value: Any, hint: Any, default: Any) -> SkipwayError:
    """The error for a value that an option does not take.

    Args:
        design: its id.
        name: of the option.
        value: as it was given.
        hint: type of the option.
        default: a value that it takes.
    """
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    if hint is float and type(value) is not bool and isinstance(value, Real):
        words = {float: "a finite number"}
    return SkipwayError(
        f"option {name}={value} of design {design!r}", words.get(hint, type_text(hint)), f"{design}({name}={default})"
    )


def check_options(design: Any) -> None:
    """Raise if an option holds what its type does not allow, however the record was made.

    Args:
        design: a record of options.

    Raises:
        SkipwayError: a word that is none of the choices, a number that is not finite, or a value of another type.
    """
    options = fields(design)
    if not options:
        return
    hints = option_hints(type(design))
    for known in options:
        value, hint = getattr(design, known.name), hints[known.name]
        if not _allowed(value, hint):
            name = design.id or type(design).__name__
            raise option_error(name, known.name, value, hint, known.default)


def _allowed(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint not in (bool, int, float):  # somebody's own design may have options of any type
        return True
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, Integral if hint is int else Real) and math.isfinite(value)
