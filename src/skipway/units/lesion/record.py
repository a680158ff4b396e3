"""The result of `skipway.lesion`: what a model loses without some of its units. No torch here."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from skipway.errors import MissingPackageError, SkipwayError
from skipway.report.shown import Shown
from skipway.units.reading import checked, measured, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from skipway.parts import Part

__all__ = ["Lesion", "LesionRun", "LesionUnit"]

Kind = Literal["deleted", "swapped"]
What = Literal["unit", "block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LesionUnit:
    """A unit, or a block of a net without units.

    Args:
        path: module path.
        changes_shape: whether what leaves it has another shape than what enters: in most nets, where it down-samples.
        influence: block influence ``1 − mean cos(x_l, x_{l+1})`` over tokens or pixels, dimensionless, 0 for a unit
            that leaves the direction of the stream alone (arXiv 2403.03853); None where the shape changes or a value
            is not seen.
        kept: why it cannot be deleted; empty where it can.
    """

    path: str
    changes_shape: bool
    influence: float | None = None
    kept: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LesionUnit:
        """What `to_dict` wrote.

        Raises:
            SkipwayError: a field is missing or unknown, or no number.
        """
        checked(data, [f.name for f in fields(cls)], "lesion unit")
        return cls(**{**data, "influence": measured(data["influence"], "influence")})


@dataclass(frozen=True, slots=True, kw_only=True)
class LesionRun:
    """The model run once with some units deleted, or in another order.

    Args:
        kind: ``"deleted"`` or ``"swapped"``.
        units: paths of the units deleted, or of those that stand elsewhere, in order of execution.
        value: of the metric.
        change: `value` less that of the whole model.
        count: units deleted, or swaps made.
        draw: number of the random draw; None where the units were chosen.
        kendall: Kendall's τ between the order of all units and the one they were put in; None for deletions.
    """

    kind: Kind
    units: tuple[str, ...]
    value: float
    change: float
    count: int
    draw: int | None = None
    kendall: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return {**{f.name: getattr(self, f.name) for f in fields(self)}, "units": list(self.units)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LesionRun:
        """What `to_dict` wrote.

        Raises:
            SkipwayError: a field is missing or unknown, or holds what it cannot hold.
        """
        checked(data, [f.name for f in fields(cls)], "lesion run")
        _one_of("kind", data["kind"], get_args(Kind))
        return cls(
            **{
                **data, "units": tuple(data["units"]), "value": number(data["value"], "value"),
                "change": number(data["change"], "change"), "kendall": measured(data["kendall"], "kendall"),
            }
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class Lesion(Shown):
    """What a model loses without some of its units, or with some of them exchanged.

    Args:
        model: name or class of the model.
        mode: ``"train"`` or ``"eval"``, as measured.
        batch: the first batch in words.
        metric: what was measured, in words.
        unit: of the metric; empty where it is dimensionless or not known.
        what: ``"unit"``: its branch is multiplied by 0, shortcut and what follows the merge stay (arXiv 1605.06431);
            ``"block"``: a module of a net without units is replaced by the identity.
        baseline: the metric of the whole model.
        samples: samples that it was measured on.
        units: all of them, in order of execution.
        runs: what was deleted or swapped, and what came of it.
        reused: whether the state before the first altered unit was reused in place of being computed again.
        forwards: runs of the whole model over all samples that the work amounts to, counted in units run.
        seed: of the random draws.
        notes: what was done otherwise, and why.
        environment: versions and device.
        seconds: wall-clock time.
    """

    model: str
    mode: str
    batch: str
    metric: str
    unit: str = ""
    what: What = "unit"
    baseline: float
    samples: int
    units: tuple[LesionUnit, ...]
    runs: tuple[LesionRun, ...] = ()
    reused: bool = False
    forwards: float = 0.0
    seed: int = 0
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def each(self) -> dict[str, LesionRun]:
        """The runs in which a chosen unit was deleted by itself, by its path, in order of execution."""
        found = {r.units[0]: r for r in self.runs if r.kind == "deleted" and r.draw is None and r.count == 1}
        return {u.path: found[u.path] for u in self.units if u.path in found}

    @property
    def drawn(self) -> dict[int, list[LesionRun]]:
        """The runs in which units were deleted at random, by their number."""
        return self._by_count("deleted")

    @property
    def reordered(self) -> dict[int, list[LesionRun]]:
        """The runs in which pairs were swapped at random, by the number of swaps."""
        return self._by_count("swapped")

    @property
    def chosen(self) -> list[LesionRun]:
        """All other runs: several chosen units deleted together, and chosen pairs swapped."""
        return [r for r in self.runs if r.draw is None and not (r.kind == "deleted" and r.count == 1)]

    def _by_count(self, kind: Kind) -> dict[int, list[LesionRun]]:
        found: defaultdict[int, list[LesionRun]] = defaultdict(list)
        for run in self.runs:
            if run.kind == kind and run.draw is not None:
                found[run.count].append(run)
        return dict(sorted(found.items()))

    def summary(self, *, changes_shape: bool | None = None) -> dict[str, float]:
        """Count, median, largest and smallest change over units deleted one by one; NaN where there are none.

        Args:
            changes_shape: only units that do, or do not, change the shape; None for all.
        """
        of_shape = {u.path: u.changes_shape for u in self.units}
        changes = [r.change for p, r in self.each.items() if changes_shape in (None, of_shape[p])]
        if not changes:
            return {"count": 0, "median": math.nan, "largest": math.nan, "smallest": math.nan}
        return {
            "count": len(changes), "median": statistics.median(changes), "largest": max(changes),
            "smallest": min(changes),
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready values, with what follows from them."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "units": [u.to_dict() for u in self.units],
            "runs": [r.to_dict() for r in self.runs],
            "notes": list(self.notes),
            "environment": dict(self.environment),
            "summary": self.summary(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Lesion:
        """The result that `to_dict` wrote, also by way of JSON; needs no torch.

        Raises:
            SkipwayError: a field is missing or unknown, or holds what it cannot hold.
        """
        checked(data, (*_PLAIN, "units", "runs", "notes", "environment", "summary"), "lesion")
        _one_of("what", data["what"], get_args(What))
        return cls(
            **{name: data[name] for name in _PLAIN if name != "baseline"},
            baseline=number(data["baseline"], "baseline"),
            units=tuple(LesionUnit.from_dict(d) for d in data["units"]),
            runs=tuple(LesionRun.from_dict(d) for d in data["runs"]),
            notes=tuple(data["notes"]),
            environment=dict(data["environment"]),
        )

    def to_frame(self) -> pd.DataFrame:
        """The runs as a pandas table, one row each, paths joined by commas; single units with their influence.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingPackageError("pandas", "Lesion.to_frame()", "frame") from None
        influence = {u.path: u.influence for u in self.units}
        rows = [
            {**r.to_dict(), "units": ",".join(r.units), "influence": influence[r.units[0]] if r.count == 1 else None}
            for r in self.runs
        ]
        columns = [*(f.name for f in fields(LesionRun)), "influence"]
        frame: pd.DataFrame = pd.DataFrame(rows, columns=columns)
        return frame

    def _parts(self) -> tuple[Part, ...]:
        from skipway.report.lesion import lesion_parts

        return lesion_parts(self)

    def _report(self) -> tuple[Part, ...]:
        from skipway.report.lesion import lesion_report

        return lesion_report(self)

    def _title(self) -> str:
        return f"skipway · {self.model} · lesions"


_PLAIN: Final = (
    "model", "mode", "batch", "metric", "unit", "what", "baseline", "samples", "reused", "forwards", "seed", "seconds",
)  # fmt: skip


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SkipwayError(f"{name}: {value!r}", "one of " + ", ".join(choices))
