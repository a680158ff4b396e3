"""Numbers as a person reads them, in few characters."""

from __future__ import annotations

import math
from typing import Final

__all__ = [
    "blocks", "bytes_text", "cosine", "count_text", "counted", "digits_to_show", "duration_text", "number_text",
    "percent", "short", "span",
]  # fmt: skip

# From here on a fixed number of decimals only adds noise.
_LARGE: Final = 1e4
_MORE_DIGITS: Final = 3
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def short(value: float | None) -> str:
    """Two to three significant digits in at most eight characters: ``0.83``, ``12.5``, ``1.2e-05``; ``–`` for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 9995 or size < 0.0095:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if size >= 99.5:
        return f"{value:.0f}"
    if size < 0.0995:
        return f"{value:.3f}"
    return f"{value:.1f}" if size >= 9.95 else f"{value:.2f}"


def span(values: tuple[float, float] | None) -> str:
    """First and last value, ``0.83→1.3``; one number where both read the same."""
    if values is None:
        return "–"
    first, last = short(values[0]), short(values[1])
    return first if first == last else f"{first}→{last}"


def cosine(values: tuple[float, float] | None) -> str:
    """Cosines, first and last, to two decimals; one number, their mean, where they differ by less than 0.1."""
    if values is None:
        return "–"
    if abs(values[0] - values[1]) < 0.1:
        values = (sum(values) / 2, sum(values) / 2)
    first, last = (f"{0.0 if abs(v) < 0.005 else v:.2f}" for v in values)
    return first if first == last else f"{first}→{last}"


def percent(values: tuple[float, float] | None) -> str:
    """A share, first and last, as whole percents: ``31→44%``; their mean where they differ by less than 10 points."""
    if values is None:
        return "–"
    if not all(math.isfinite(v) for v in values):
        return span(values)
    if abs(values[0] - values[1]) < 0.1:
        values = (sum(values) / 2, sum(values) / 2)
    first, last = (f"{100 * v:.0f}" for v in values)
    return f"{first}%" if first == last else f"{first}→{last}%"


def count_text(value: float) -> str:
    """A count with a unit prefix: ``25.6 M``, ``4.1 G``; below ten thousand in full: ``9,412``."""
    if value < 10_000:
        return f"{value:,.0f}"
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.{1 if value >= 9.95 * size else 2}f} {prefix}"
    return f"{value / 1e3:.1f} k"


def number_text(value: float, digits: int, *, signed: bool = False) -> str:
    """``12.34``, or ``1.2e20`` for what has left all bounds; `signed` with its sign, which what rounds to 0 has not."""
    sign = "+" if signed else ""
    if not abs(value) < _LARGE:
        return sign * (value > 0) + short(value)
    text = f"{value:{sign}.{digits}f}"
    return text if float(text) else f"{0:.{digits}f}"


def digits_to_show(low: float, high: float, digits: int) -> int:
    """Decimals with which neither end of an interval reads as 0, where it leaves 0 out; up to 3 more than `digits`."""
    if low <= 0 <= high:
        return digits
    nearer = min(abs(low), abs(high))
    enough = (digits + more for more in range(_MORE_DIGITS) if round(nearer, digits + more))
    return next(enough, digits + _MORE_DIGITS)


def counted(number: int, what: str) -> str:
    """So many things: ``1 run``, ``3 runs``, ``1,000 samples``."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def duration_text(seconds: float) -> str:
    """``41 s``, ``12 min``, ``3.4 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def bytes_text(value: float) -> str:
    """Bytes in binary units: ``168 MiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.{0 if value >= 99.5 * size else 1}f} {unit}"
    return f"{value:.0f} B"


def blocks(share: float, width: int) -> str:
    """A bar of a share, to an eighth of a character: ``██▌``; from 1 on all of `width`, what is below 0 as above."""
    eighths = round(min(abs(share), 1.0) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
