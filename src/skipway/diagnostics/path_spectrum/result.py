"""The result of `skipway.path_spectrum`: the gradient by number of branches passed, and how far to trust it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from skipway.errors import SkipwayError
from skipway.report.shown import Shown
from skipway.units.reading import checked, measured, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skipway.parts import Part


__all__ = ["Carried", "Of", "PathSpectrum", "Road", "SampledLength"]

Road = Literal["unchanged", "scaled", "changed", "none", "unknown"]
Carried = Literal["together", "one by one"]
Of = Literal["stream", "input", "parameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledLength:
    """Single paths of one length, drawn at random (arXiv 1605.06431).

    Args:
        length: branches passed.
        paths: how many were drawn; all that there are, if they are fewer than asked for.
        norm: mean L2 norm of the gradient through one path.
        norm_error: its standard error; None for fewer than two paths, 0 where all paths were taken.
        share: unbiased estimate of the share of all paths of this length: their number times the mean product with the
            whole gradient, over its square.
        share_error: its standard error.
    """

    length: int
    paths: int
    norm: float
    norm_error: float | None
    share: float
    share_error: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SampledLength:
        """What `to_dict` wrote.

        Raises:
            SkipwayError: a field is missing or unknown, or no number.
        """
        checked(data, [f.name for f in fields(cls)], "sampled paths")
        return cls(
            length=data["length"],
            paths=data["paths"],
            norm=number(data["norm"], "norm"),
            norm_error=measured(data["norm_error"], "norm_error"),
            share=number(data["share"], "share"),
            share_error=measured(data["share_error"], "share_error"),
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class PathSpectrum(Shown):
    """The gradient by path length, exact.

    With L units there are 2^L paths, C(L,k) of which pass k branches and L − k shortcuts. The gradient is the sum of
    what comes by all of them, ``g = Σ_k g_k``; `share` of k is ``⟨g_k, g⟩ / ⟨g, g⟩``, which adds up to 1 and is
    negative where a part works against the whole.

    Args:
        model: name or class of the model.
        mode: ``"train"`` or ``"eval"``, as measured.
        batch: the batch in words.
        loss: the loss in words, with its value.
        of: what the gradient is taken with respect to: the stream where the first unit reads it, the input, or all
            parameters that train.
        units: module paths of the L units whose branches are counted, in order of execution.
        uncounted: units of the stream that could not be intercepted; a path through them counts nothing.
        chain: whether all ways from one unit to the next lead through its join; only then are there C(L,k) paths of
            length k.
        share: of the lengths 0, 1 … K.
        norm: L2 norm of each part.
        longer_share, longer_norm: the same of all lengths above K as one part; None if there are none.
        total_norm: L2 norm of the whole gradient.
        road: what becomes, on the way that passes no branch, of the gradient behind the last unit: it arrives
            ``"unchanged"``, ``"scaled"`` by a number, ``"changed"`` in direction or shape, or not at all (``"none"``).
        road_factor: the number by which it is scaled; for ``"changed"`` the ratio of the norms; None if unknown.
        sum_error: ``‖Σ g_k − g‖ / ‖g‖``, where g is the gradient of the model as it is, without interception.
        degree0_error: ``‖g_0 − c‖ / ‖c‖``, where c is the gradient with all branches cut off.
        allowed: both must stay below, by the lowest precision in the model.
        carried: whether the parts were carried together (vmap) or one by one, an ordinary backward pass each.
        sampled: single paths of each length, drawn with a seed.
        notes: what was done otherwise, and why.
        environment: versions and device.
        seconds: wall-clock time.
    """

    model: str
    mode: str
    batch: str
    loss: str
    of: Of
    units: tuple[str, ...]
    uncounted: tuple[str, ...] = ()
    chain: bool
    share: tuple[float, ...]
    norm: tuple[float, ...]
    longer_share: float | None = None
    longer_norm: float | None = None
    total_norm: float
    road: Road
    road_factor: float | None
    sum_error: float
    degree0_error: float
    allowed: float
    carried: Carried
    sampled: tuple[SampledLength, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def trusted(self) -> bool:
        """Whether both checks hold."""
        return self.sum_error <= self.allowed and self.degree0_error <= self.allowed

    @property
    def max_length(self) -> int:
        """K, the longest length that stands by itself."""
        return len(self.share) - 1

    @property
    def mean_length(self) -> float:
        """Effective path length: mean number of branches passed, weighted by the size of each share.

        What is longer than K counts K + 1, so that the mean is then a lower bound.
        """
        weights = self._weights()
        return sum(k * w for k, w in enumerate(weights))

    def carrying(self, part: float = 0.9) -> tuple[int, int]:
        """The shortest run of lengths, first and last, whose shares make up `part` of all (by their size)."""
        weights = self._weights()
        best = (0, len(weights) - 1)
        for first in range(len(weights)):
            carried = 0.0
            for last in range(first, len(weights)):
                carried += weights[last]
                if carried >= part * (1 - 1e-12):
                    if last - first < best[1] - best[0]:
                        best = (first, last)
                    break
        return best

    def path_share(self, first: int, last: int) -> float:
        """Share of the 2^L paths that pass from `first` to `last` branches."""
        return math.fsum(self.binomial(k) for k in range(first, min(last, len(self.units)) + 1))

    def binomial(self, k: int) -> float:
        """Share of the 2^L paths that pass k branches, C(L,k) / 2^L."""
        return math.exp(self.log_paths(k) - len(self.units) * math.log(2)) if 0 <= k <= len(self.units) else 0.0

    def log_paths(self, k: int) -> float:
        """Natural logarithm of the number of paths that pass k branches."""
        n = len(self.units)
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    def norm_per_path(self, k: int) -> float:
        """L2 norm of the part that passed k branches over the number of its paths."""
        return self.norm[k] * math.exp(-self.log_paths(k))

    def sampled_shares(self) -> dict[int, float]:
        """Number of paths times mean norm of a single one, by length, as a share of their sum (arXiv 1605.06431)."""
        logs = {s.length: self.log_paths(s.length) + math.log(s.norm) for s in self.sampled if s.norm > 0}
        top = max(logs.values(), default=0.0)
        total = sum(math.exp(v - top) for v in logs.values())
        return {s.length: math.exp(logs[s.length] - top) / total if s.length in logs else 0.0 for s in self.sampled}

    def _weights(self) -> list[float]:
        shares = [*self.share, *([] if self.longer_share is None else [self.longer_share])]
        total = math.fsum(map(abs, shares))
        return [abs(s) / total for s in shares] if total else [math.nan] * len(shares)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready values, with what follows from them."""
        plain = {name: getattr(self, name) for name in (*_TEXTS, *_NUMBERS, *_MEASURED, "chain", "seconds")}
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {
            **plain,
            **lists,
            "sampled": [s.to_dict() for s in self.sampled],
            "environment": dict(self.environment),
            "trusted": self.trusted,
            "mean_length": self.mean_length,
            "carrying_90_percent": list(self.carrying()),
            "binomial": [self.binomial(k) for k in range(self.max_length + 1)],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PathSpectrum:
        """The result that `to_dict` wrote, also by way of JSON; needs no torch.

        Raises:
            SkipwayError: a field is missing or unknown, or holds what it cannot hold.
        """
        checked(
            data,
            (*_TEXTS, *_NUMBERS, *_MEASURED, *_LISTS, "chain", "seconds", "sampled", "environment", *_DERIVED),
            "path spectrum",
        )
        for name, kind in (("of", Of), ("road", Road), ("carried", Carried)):
            if data[name] not in get_args(kind):
                raise SkipwayError(f"{name}: {data[name]!r}", "one of " + ", ".join(get_args(kind)))
        values: dict[str, Any] = {name: data[name] for name in (*_TEXTS, "chain", "seconds")}
        values |= {name: number(data[name], name) for name in _NUMBERS}
        values |= {name: measured(data[name], name) for name in _MEASURED}
        values |= {name: tuple(number(v, name) for v in data[name]) for name in ("share", "norm")}
        values |= {name: tuple(data[name]) for name in ("units", "uncounted", "notes")}
        sampled = tuple(SampledLength.from_dict(d) for d in data["sampled"])
        return cls(**values, sampled=sampled, environment=dict(data["environment"]))

    def _parts(self) -> tuple[Part, ...]:
        from skipway.report.paths import paths_parts

        return paths_parts(self)

    def _report(self) -> tuple[Part, ...]:
        from skipway.report.paths import paths_report

        return paths_report(self)

    def _title(self) -> str:
        return f"skipway · {self.model} · path lengths"


_TEXTS: Final = ("model", "mode", "batch", "loss", "of", "road", "carried")
_NUMBERS: Final = ("total_norm", "sum_error", "degree0_error", "allowed")
_MEASURED: Final = ("longer_share", "longer_norm", "road_factor")
_LISTS: Final = ("units", "uncounted", "share", "norm", "notes")
_DERIVED: Final = ("trusted", "mean_length", "carrying_90_percent", "binomial")
