"""Stream profiles: the measured signal by depth, forward and backward, of one net or of several over each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.parts import Lines, Series
from skipway.report.road import branch_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skipway.diagnostics.inspection import Inspection

__all__ = ["stream_gradients", "stream_profiles"]

_FORWARD: Final = (
    "A level curve carries the signal; one that climbs by the same factor at every unit grows exponentially, and what "
    "each branch adds is soon lost in it."
)
_SHARE: Final = (
    "Near 0 % a branch changes nothing, near 100 % the shortcut is drowned. Shares that sink with depth mean that deep "
    "units matter less and less."
)
_BACKWARD: Final = (
    "Read it from right to left, as the gradient runs. A straight slope on this scale is a gradient that vanishes or "
    "explodes by the same factor at every step; a level curve reaches every layer."
)


@dataclass(frozen=True, slots=True)
class _Point:
    path: str
    rms: float | None
    share: float | None
    grad: float | None


def stream_profiles(named: Mapping[str, Inspection]) -> tuple[Lines, ...]:
    """Charts of the stream rms, the branch share and the gradient by depth, a curve for each inspection.

    A point is a unit of the main stream; where a net has fewer than two units, a weighted layer. A chart of which
    nothing was measured is left out.

    Args:
        named: inspections by the name that the legend shows.
    """
    points = {name: _points(inspection) for name, inspection in named.items()}
    layers = any(_by_layer(inspection) for inspection in named.values())
    axis = "unit" if not layers else "layer" if all(map(_by_layer, named.values())) else "unit or layer"

    def chart(field: str, title: str, note: str, *, unit: str = "", log: bool = True) -> Lines:
        series = tuple(
            Series(
                name=name,
                y=tuple(getattr(p, field) for p in along),
                x=tuple(map(float, range(1, len(along) + 1))),
                labels=tuple(p.path for p in along),
            )
            for name, along in points.items()
        )
        measured = tuple(s for s in series if any(y is not None for y in s.y))
        along = f"{axis}, from input to output"
        return Lines(series=measured, x=along, unit=unit, log=log, title=title, note=note)

    charts = (
        chart("rms", "Forward: rms of the stream", _FORWARD),
        chart("share", "Forward: share of the branch in branch + shortcut (rms)", _SHARE, unit="%", log=False),
        chart("grad", "Backward: norm of the gradient of the loss at the stream", _BACKWARD),
    )
    return tuple(c for c in charts if c.series)


def stream_gradients(inspection: Inspection) -> list[float]:
    """Norms of the gradient along the stream, from input to output, where they were measured."""
    return [p.grad for p in _points(inspection) if p.grad is not None]


def _by_layer(inspection: Inspection) -> bool:
    return len(inspection.units) < 2 and bool(inspection.layers)


def _points(inspection: Inspection) -> list[_Point]:
    if _by_layer(inspection):
        return [_Point(layer.path, layer.rms, None, layer.grad) for layer in inspection.layers]
    return [
        _Point(u.path, u.numbers.stream_rms, _percent(branch_share(u.numbers)), u.numbers.grad_stream)
        for u in inspection.units
        if u.level == 0 and u.kind in ("unit", "merge")
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
