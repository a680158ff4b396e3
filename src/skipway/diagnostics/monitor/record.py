"""What a monitor measured at one step: a reading for each unit, and the few numbers that are logged."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from skipway.diagnostics.profile import main_stream
from skipway.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from skipway.units.unit import Unit

__all__ = ["Reading", "Record", "readings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One unit at one step; None where a number is unknown. Dimensionless but for the gradient.

    Args:
        path: module path of the unit, as an inspection names it.
        on_stream: whether the unit is on the main stream, of which the logged numbers are.
        stream_rms: root mean square of x, the stream where the unit reads it.
        branch_rms: root mean square of the branch's output as it enters the merge, s·F(x).
        shortcut_rms: root mean square of the shortcut's output, h(x).
        branch_share: ‖s·F(x)‖/‖h(x)‖.
        out_rms: root mean square of x', the stream behind the unit.
        similarity: mean cosine between different tokens (or channels of an image) of one sample in x'.
        grad_stream: L2 norm of the gradient with respect to x of what `backward` was called on, without the factor of a
            GradScaler (units of the loss per unit of x).
        update_over_weight: ‖Δw‖/‖w‖ over all weights that the branch trains; unknown without an optimizer.
        largest: largest magnitude in x, x' and s·F(x), where they are float16.
    """

    path: str
    on_stream: bool
    stream_rms: float | None = None
    branch_rms: float | None = None
    shortcut_rms: float | None = None
    branch_share: float | None = None
    out_rms: float | None = None
    similarity: float | None = None
    grad_stream: float | None = None
    update_over_weight: float | None = None
    largest: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All units at one step.

    Args:
        step: number of the step, from 0.
        units: a reading for each unit, in order of execution.
        scale: the factor of the GradScaler, by which gradients were divided; None without one.
    """

    step: int
    units: tuple[Reading, ...]
    scale: float | None = None

    def summary(self) -> dict[str, float]:
        """What is logged: few keys, the same at every step as long as the same is known, all of the main stream."""
        stream = [u for u in self.units if u.on_stream]
        found: dict[str, float | None] = {}
        if stream:
            first, last = stream[0], stream[-1]
            sizes = [*_known(u.stream_rms for u in stream), *_known([last.out_rms])]
            shares = _known(u.branch_share for u in stream)
            updates = _known(u.update_over_weight for u in stream)
            found = {
                "stream_rms/first": first.stream_rms,
                "stream_rms/last": last.out_rms,
                "stream_rms/max": max(sizes, default=None),
                "branch_share/min": min(shares, default=None),
                "branch_share/median": statistics.median(shares) if shares else None,
                "branch_share/max": max(shares, default=None),
                "grad_first_over_last": _over(first.grad_stream, last.grad_stream),
                "similarity/last": last.similarity,
                "update_over_weight/median": statistics.median(updates) if updates else None,
                "update_over_weight/max": max(updates, default=None),
            }
        return {f"skipway/{name}": value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values."""
        return {"step": self.step, "scale": self.scale, "units": [u.to_dict() for u in self.units]}

    def to_frame(self) -> pd.DataFrame:
        """Units as a pandas DataFrame, a row each (needs the extra ``frame``).

        Raises:
            MissingPackageError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise MissingPackageError("pandas", "Record.to_frame", "frame") from None
        frame: pd.DataFrame = pd.DataFrame([{"step": self.step, **u.to_dict()} for u in self.units])
        return frame


def readings(
    units: Sequence[Unit], numbers: Mapping[int, Mapping[str, float]], scale: float | None
) -> tuple[Reading, ...]:
    """Readings from scalars by unit and name; gradients are divided by `scale`."""
    stream = {u.index for u in main_stream(units)}
    return tuple(_reading(u, numbers.get(k, {}), scale, on_stream=u.index in stream) for k, u in enumerate(units))


def _reading(unit: Unit, found: Mapping[str, float], scale: float | None, *, on_stream: bool) -> Reading:
    gradient = found.get("grad_stream")
    return Reading(
        path=unit.path,
        on_stream=on_stream,
        stream_rms=found.get("stream_rms"),
        branch_rms=found.get("branch_rms"),
        shortcut_rms=found.get("shortcut_rms"),
        branch_share=_over(found.get("branch_rms"), found.get("shortcut_rms")),
        out_rms=found.get("out_rms"),
        similarity=found.get("similarity"),
        grad_stream=gradient if gradient is None or scale is None else gradient / scale,
        update_over_weight=_over(found.get("update"), found.get("weight")),
        largest=found.get("largest"),
    )


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _known(values: Any) -> list[float]:
    return [v for v in values if v is not None]
