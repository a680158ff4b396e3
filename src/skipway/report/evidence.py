"""The evidence of a finding, drawn: the curve that shows it, or the place on the road."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from skipway.parts import Lines, Part, Series
from skipway.report.road import stream_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.diagnostics.finding import Finding
    from skipway.diagnostics.inspection import Inspection
    from skipway.units.unit import Unit

__all__ = ["drawn"]

_GRADIENT: Final = "norm of the gradient with respect to the stream"
_SIZE: Final = "rms of the stream"
_ALIKE: Final = "mean cosine between tokens (channels of an image) behind the unit"
_CURVES: Final = {
    "gradient-vanishing": _GRADIENT,
    "gradient-exploding": _GRADIENT,
    "missing-shortcut": _GRADIENT,
    "scaled-shortcut": _GRADIENT,
    "post-norm-deep": _ALIKE,
    "rank-collapse": _ALIKE,
    "branch-scale": _SIZE,
    "stream-growth": _SIZE,
    "missing-final-norm": _SIZE,
    "gate-unbounded": _SIZE,
    "scale-buffer": _SIZE,
    "fp16-headroom": _SIZE,
    "nonnegative-branch": _SIZE,
}
_FEWEST: Final = 3
_AROUND: Final = 2


def drawn(finding: Finding, inspection: Inspection) -> tuple[Part, ...]:
    """What to draw for a finding: what it speaks of along the depth, the place marked; else the road at the place.

    Nothing where neither is known.
    """
    stream = [u for u in inspection.units if u.level == 0 and u.kind == "unit"]
    place = _place(finding.path, stream)
    what = _CURVES.get(finding.rule)
    if what is not None:
        labels, values = _curve(what, stream, inspection)
        known = sum(v is not None for v in values)
        if known >= _FEWEST:
            return (_lines(what, labels, values, place if len(values) == len(stream) else None),)
    if place is None:
        return ()
    near = stream[max(place - _AROUND, 0) : place + _AROUND + 1]
    return (replace(stream_map(near), title=f"the road at {finding.path}"),)


def _place(path: str, stream: Sequence[Unit]) -> int | None:
    """The unit that a path names, or lies in."""
    if not path:
        return None
    exact = [k for k, u in enumerate(stream) if u.path == path]
    inside = [k for k, u in enumerate(stream) if path.startswith(f"{u.path}.") or u.path.startswith(f"{path}.")]
    inside += [k for k, u in enumerate(stream) if u.path.split("#")[0] == path]
    return next(iter(exact + inside), None)


def _curve(
    what: str, stream: Sequence[Unit], inspection: Inspection
) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    if len(stream) < _FEWEST and what == _GRADIENT:
        layers = inspection.layers
        return tuple(layer.path for layer in layers), tuple(layer.grad for layer in layers)
    name = {_GRADIENT: "grad_stream", _SIZE: "out_rms", _ALIKE: "similarity"}[what]
    return tuple(u.path for u in stream), tuple(getattr(u.numbers, name) for u in stream)


def _lines(what: str, labels: tuple[str, ...], values: tuple[float | None, ...], place: int | None) -> Lines:
    series = [Series(name=what, y=values, labels=labels)]
    if place is not None and values[place] is not None:
        series.append(
            Series(name=f"here: {labels[place]}", y=(values[place],), x=(float(place),), labels=(labels[place],))
        )
    positive = all(v is None or v > 0 for v in values)
    return Lines(series=tuple(series), log=what != _ALIKE and positive, title=what)
