"""How the measured signal looks on the road: its width by the stream's rms, its colour by the gradient.

Both are read against one place of the same net, on scales that are fixed, so that two maps can be compared by eye.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.parts import Stretch

__all__ = ["LEVELS", "Signal", "shade", "signal"]

USUAL: Final = 9.0
NARROWEST: Final = 2.0
WIDEST: Final = 20.0
PER_DECADE: Final = 4.0
LEVELS: Final = 4  # shades to each side of the usual one, a decade each


@dataclass(frozen=True, slots=True)
class Signal:
    """What a map's signal is read against.

    Args:
        rms: stream rms at the first unit of the main stream where it was measured; None if nowhere.
        grad: gradient norm at the last such unit.
        rms_change, grad_change: rms at the last over the first, gradient at the first over the last; None if unknown.
    """

    rms: float | None
    grad: float | None
    rms_change: float | None
    grad_change: float | None

    def width(self, stretch: Stretch) -> float | None:
        """Width of the road in pixels, four more or less for each power of ten; None where rms was not measured."""
        decades = _decades(_ratio(stretch.stream_rms, self.rms))
        return None if decades is None else round(min(max(USUAL + PER_DECADE * decades, NARROWEST), WIDEST), 1)

    def level(self, stretch: Stretch) -> int | None:
        """Shade of the gradient here against that at the last unit; None where it was not measured."""
        return shade(_ratio(stretch.grad, self.grad))


def shade(ratio: float | None) -> int | None:
    """Powers of ten in `ratio`, rounded, at most `LEVELS` to each side; None for no or an impossible ratio."""
    decades = _decades(ratio)
    return None if decades is None else round(min(max(decades, -LEVELS), LEVELS))


def signal(units: Sequence[Stretch]) -> Signal:
    """What the signal of `units`, an unfolded road, is read against."""
    main = [u for u in units if u.level == 0]
    rms = [u.stream_rms[0] for u in main if u.stream_rms is not None]
    grad = [u.grad[0] for u in main if u.grad is not None]
    first_rms = next((v for v in rms if _usable(v)), None)
    last_grad = next((v for v in reversed(grad) if _usable(v)), None)
    return Signal(
        rms=first_rms,
        grad=last_grad,
        rms_change=None if first_rms is None or len(rms) < 2 else rms[-1] / first_rms,
        grad_change=None if last_grad is None or len(grad) < 2 else grad[0] / last_grad,
    )


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _ratio(pair: tuple[float, float] | None, reference: float | None) -> float | None:
    return None if pair is None or reference is None else pair[0] / reference


def _decades(ratio: float | None) -> float | None:
    if ratio is None or not ratio >= 0:  # not a number is neither
        return None
    return math.log10(ratio) if ratio else -math.inf
