"""Stream curves: how a measured number runs along the depth, and its slope per unit."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.diagnostics.layer import Layer
    from skipway.units.unit import Unit

__all__ = ["Curve", "gradient_curve", "main_stream", "slope", "slopes"]


@dataclass(frozen=True, slots=True)
class Curve:
    """A positive number by depth.

    Args:
        what: what a point is: ``"unit"`` or ``"layer"``.
        paths: module paths, first to last.
        values: the number at each.
        slope: change of its natural logarithm per step, forward (dimensionless).
    """

    what: str
    paths: tuple[str, ...]
    values: tuple[float, ...]
    slope: float

    @property
    def ratio(self) -> float:
        """First over last."""
        return self.values[0] / max(self.values[-1], 1e-45)

    @property
    def falls_back(self) -> bool:
        """Whether going from the last to the first the number falls at most steps, not at one cliff."""
        return self._share(lambda a, b: a < b) >= 0.6

    @property
    def grows_back(self) -> bool:
        """Whether going from the last to the first the number grows at most steps."""
        return self._share(lambda a, b: a > b) >= 0.6

    def _share(self, holds: Comparison) -> float:
        pairs = list(zip(self.values, self.values[1:], strict=False))
        return sum(holds(a, b) for a, b in pairs) / max(len(pairs), 1)

    @property
    def steepest_path(self) -> str:
        """The point after which the number changes most."""
        return self.paths[self._steepest]

    @property
    def steepest_factor(self) -> float:
        """The number at `steepest_path` over that at the next point: the largest change of all, going back."""
        k = self._steepest
        return self.values[k] / max(self.values[min(k + 1, len(self.values) - 1)], 1e-45)

    @property
    def _steepest(self) -> int:
        logs = [math.log(max(v, 1e-45)) for v in self.values]
        steps = [abs(b - a) for a, b in itertools.pairwise(logs)]
        return max(range(len(steps)), key=steps.__getitem__) if steps else 0


if TYPE_CHECKING:
    from collections.abc import Callable

    Comparison = Callable[[float, float], bool]


def main_stream(units: Sequence[Unit]) -> list[Unit]:
    """The units of the main stream."""
    return [u for u in units if u.level == 0 and u.kind in ("unit", "merge")]


def gradient_curve(units: Sequence[Unit], layers: Sequence[Layer]) -> Curve | None:
    """Gradient norm by unit of the main stream, or by weighted layer where there are no units."""
    points = [(u.path, u.numbers.grad_stream) for u in main_stream(units)]
    what = "unit"
    if len(points) < 2:
        points, what = [(n.path, n.grad) for n in layers], "layer"
    known = [(path, value) for path, value in points if value is not None]
    if len(known) < 2:
        return None
    values = tuple(value for _, value in known)
    return Curve(what, tuple(path for path, _ in known), values, slope([math.log(max(v, 1e-45)) for v in values]))


def slope(values: Sequence[float]) -> float:
    """Least-squares slope of values against their position; 0 for fewer than two."""
    n = len(values)
    if n < 2:
        return 0.0
    middle, mean = (n - 1) / 2, sum(values) / n
    spread = sum((k - middle) ** 2 for k in range(n))
    return sum((k - middle) * (v - mean) for k, v in enumerate(values)) / spread


def slopes(units: Sequence[Unit], layers: Sequence[Layer]) -> dict[str, float]:
    """Change per unit along the main stream: logarithm of stream rms, of the gradient going back, and similarity."""
    stream = main_stream(units)
    found: dict[str, float] = {}
    rms = [u.numbers.stream_rms for u in stream if u.numbers.stream_rms]
    if len(rms) > 1:
        found["stream_rms"] = slope([math.log(v) for v in rms])
    curve = gradient_curve(units, layers)
    if curve is not None:
        found["grad_stream"] = -curve.slope
    alike = [u.numbers.similarity for u in stream if u.numbers.similarity is not None]
    if len(alike) > 1:
        found["similarity"] = slope(alike)
    return found
