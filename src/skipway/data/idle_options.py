"""Options that would do nothing for the set at hand are refused, not ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from skipway.spec import DataSpec

__all__ = ["refuse_image_options", "refuse_root"]


def refuse_image_options(spec: DataSpec) -> None:
    """Refuse options that would do nothing.

    Raises:
        SkipwayError: the spec has one.
    """
    for option, idle in (("image_size", None), ("augment", "auto"), ("normalize", "channel")):
        value = getattr(spec, option)
        if value != idle:
            raise SkipwayError(f"{option}={value!r} for {spec.name}, which has no images", f"no {option}")


def refuse_root(spec: DataSpec) -> None:
    """Refuse a folder for a set that is read from none.

    Raises:
        SkipwayError: the spec names one.
    """
    if spec.root is not None:
        raise SkipwayError(f"root={spec.root!r} for {spec.name}, which is read from no folder", "no root")
