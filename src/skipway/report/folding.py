"""Folding: a deep net says the same thing many times; say it once, with how often and from where to where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["Run", "fold", "folded_label"]

LONGEST_PERIOD = 12


@dataclass(frozen=True, slots=True)
class Run:
    """`count` repeats of a pattern of `period` items, beginning at `start`."""

    start: int
    period: int
    count: int

    def members(self, offset: int) -> range:
        """Indices of the items at position `offset` of the pattern, one per repeat."""
        return range(self.start + offset, self.start + self.period * self.count, self.period)


def fold(keys: Sequence[Hashable]) -> list[Run]:
    """Split a sequence into runs of repeated patterns, greedily from the left, the shortest description first.

    ``A B B B C`` gives A, B ×3, C; ``A B A B A B`` gives (A B) ×3. Cost is linear in the length for a fixed longest
    period.
    """
    runs: list[Run] = []
    at = 0
    while at < len(keys):
        best = Run(at, 1, 1)
        for period in range(1, min(LONGEST_PERIOD, (len(keys) - at) // 2) + 1):
            count = _repeats(keys, at, period)
            saved = period * (count - 1)
            if count > 1 and saved > best.period * (best.count - 1):
                best = Run(at, period, count)
        runs.append(best)
        at += best.period * best.count
    return runs


def _repeats(keys: Sequence[Hashable], at: int, period: int) -> int:
    end = at + period
    while end < len(keys) and keys[end] == keys[end - period]:
        end += 1
    return (end - at) // period


def folded_label(paths: Sequence[str]) -> str:
    """One label for the module paths of a run: ``layer1.1…2``, ``blocks.0…11.attn``; else ``first … last``."""
    first, last = paths[0], paths[-1]
    if first == last:
        return first
    (stem, suffix), (last_stem, last_suffix) = _split(first), _split(last)
    a, b = stem.split("."), last_stem.split(".")
    if len(a) == len(b) and suffix == last_suffix:
        differing = [i for i, (p, q) in enumerate(zip(a, b, strict=True)) if p != q]
        if len(differing) == 1:
            i = differing[0]
            return ".".join([*a[:i], f"{a[i]}…{b[i]}", *a[i + 1 :]]) + suffix
    return f"{first} … {last}"


def _split(path: str) -> tuple[str, str]:
    """Module path and the mark of its k-th call or k-th unit: ``("layers.3", "#2")``."""
    at = min((i for i in (path.find("#"), path.find("@")) if i >= 0), default=len(path))
    return path[:at], path[at:]
