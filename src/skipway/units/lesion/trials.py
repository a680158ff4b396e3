"""Which units are deleted or swapped in which run: chosen, or drawn with a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from skipway.errors import SkipwayError, UnknownNameError
from skipway.units.lesion.swap import alike, kendall

if TYPE_CHECKING:
    from skipway.units.lesion.record import Kind
    from skipway.units.lesion.sites import Site, Sites

__all__ = ["Delete", "Swap", "Trial", "trials"]

Delete: TypeAlias = str | int | Sequence[int] | Sequence[str] | Sequence[int | str] | None
Swap: TypeAlias = bool | int | Sequence[int] | Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Trial:
    """One run.

    Args:
        kind: what is done.
        units: paths deleted, or standing elsewhere, in order of execution.
        pairs: paths swapped, one pair after the other.
        draw: number of the random draw, or None.
        kendall: τ of the order that results.
    """

    kind: Kind
    units: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    draw: int | None = None
    kendall: float | None = None

    @property
    def count(self) -> int:
        """Units deleted, or swaps made."""
        return len(self.units) if self.kind == "deleted" else len(self.pairs)


def trials(sites: Sites, delete: Delete, swap: Swap, draws: int, seed: int) -> list[Trial]:
    """All runs that were asked for.

    Raises:
        SkipwayError: more units than there are, one that cannot be deleted, or two that cannot be swapped.
        UnknownNameError: a path is none of a unit.
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise SkipwayError(f"draws={draws!r}", "a number of random draws, at least 1")
    return [*_deletions(sites, delete, draws, seed), *_swaps(sites, swap, draws, seed)]


# ---- deletions


def _deletions(sites: Sites, delete: Delete, draws: int, seed: int) -> list[Trial]:
    if delete is None:
        return []
    able = [path for path, site in sites.sites.items() if not site.kept]
    if delete == "each":
        return _each(sites, able)
    if isinstance(delete, str):
        raise SkipwayError(
            f"delete={delete!r}", "'each', a number of units to draw, or a list of paths", f"delete=[{delete!r}]"
        )
    listed = [delete] if isinstance(delete, int) else list(delete)
    if "each" in listed:
        rest = [v for v in listed if v != "each"]
        return [*_each(sites, able), *(_deletions(sites, rest, draws, seed) if rest else [])]
    if listed and all(isinstance(v, int) and not isinstance(v, bool) for v in listed):
        return _drawn(able, [_whole(v) for v in listed], draws, seed, sites.what)
    if listed and all(isinstance(v, str) for v in listed):
        paths = [str(v) for v in listed]
        for path in paths:
            _check_able(sites, path)
        return [Trial("deleted", tuple(p for p in sites.sites if p in paths))]
    raise SkipwayError(f"delete={delete!r}", "'each', a number of units to draw, or a list of paths")


def _each(sites: Sites, able: list[str]) -> list[Trial]:
    if not able:
        path, site = next(iter(sites.sites.items()))
        raise SkipwayError(f"none of the {len(sites.sites)} {sites.what}s can be deleted; {path!r}: {site.kept}")
    return [Trial("deleted", (path,)) for path in able]


def _drawn(able: list[str], counts: list[int], draws: int, seed: int, what: str) -> list[Trial]:
    generator = random.Random(seed)  # noqa: S311  # draws to be repeated, not secrets
    found: list[Trial] = []
    for count in counts:
        if not 1 <= count <= len(able):
            raise SkipwayError(
                f"delete={count}, but {len(able)} {what}s can be deleted", f"a number from 1 to {len(able)}"
            )
        seen: set[tuple[str, ...]] = set()
        while len(seen) < min(draws, math.comb(len(able), count)):
            drawn = generator.sample(range(len(able)), count)
            paths = tuple(able[i] for i in sorted(drawn))
            if paths not in seen:
                found.append(Trial("deleted", paths, draw=len(seen)))
                seen.add(paths)
    return found


def _check_able(sites: Sites, path: str) -> None:
    site = _known(sites, path)
    if site.kept:
        raise SkipwayError(f"{sites.what} {path!r} cannot be deleted: {site.kept}", f"another {sites.what}")


def _known(sites: Sites, path: str) -> Site:
    if path not in sites.sites:
        raise UnknownNameError(sites.what, path, sites.sites)
    return sites.sites[path]


# ---- swaps


def _swaps(sites: Sites, swap: Swap, draws: int, seed: int) -> list[Trial]:
    if swap is False:
        return []
    paths = list(sites.sites)
    fitting = [(a, b) for a, b in combinations(paths, 2) if alike(sites.sites[a].content, sites.sites[b].content)]
    if swap is True or isinstance(swap, int) or _are_numbers(swap):
        if not fitting:
            raise SkipwayError(
                f"swap={swap!r}: no two {sites.what}s have modules of the same classes and shapes",
                "a model with two of one structure",
            )
        if swap is True:
            return [_ordered(paths, ((a, b),), None) for a, b in _neighbours(fitting)]
        return _shuffled(paths, fitting, [swap] if isinstance(swap, int) else [_whole(v) for v in swap], draws, seed)
    for pair in swap:
        if isinstance(pair, (str, int)) or len(pair) != 2:
            raise SkipwayError(f"swap={swap!r}", "True, a number of swaps, or a list of pairs of paths")
        one, other = (_known(sites, path) for path in pair)
        if not alike(one.content, other.content):
            raise SkipwayError(
                f"{sites.what}s {pair[0]!r} and {pair[1]!r} cannot be swapped: their modules differ in class or shape, "
                "or are shared",
                "two of one structure",
            )
    return [_ordered(paths, (tuple(pair),), None) for pair in swap]  # type: ignore[arg-type]  # pairs, as just checked


def _are_numbers(swap: object) -> bool:
    return isinstance(swap, Sequence) and bool(swap) and all(isinstance(v, int) for v in swap)


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise SkipwayError(f"{value!r}", "a whole number")
    return value


def _neighbours(fitting: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each unit with the next of its structure."""
    found: dict[str, tuple[str, str]] = {}
    for a, b in fitting:
        found.setdefault(a, (a, b))
    return list(found.values())


def _shuffled(
    paths: list[str], fitting: list[tuple[str, str]], counts: list[int], draws: int, seed: int
) -> list[Trial]:
    generator = random.Random(seed)  # noqa: S311  # draws to be repeated, not secrets
    if wrong := [count for count in counts if count < 1]:
        raise SkipwayError(f"swap={wrong[0]}", "a number of swaps, at least 1")
    return [_ordered(paths, tuple(generator.choices(fitting, k=k)), draw) for k in counts for draw in range(draws)]


def _ordered(paths: list[str], pairs: tuple[tuple[str, str], ...], draw: int | None) -> Trial:
    order = list(range(len(paths)))
    for a, b in pairs:
        i, j = paths.index(a), paths.index(b)
        order[i], order[j] = order[j], order[i]
    moved = tuple(path for i, path in enumerate(paths) if order[i] != i)
    return Trial("swapped", moved, pairs, draw, kendall(order))
