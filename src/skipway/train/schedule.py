"""The learning rate as a function of the step alone, so that nothing of it has to be saved."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skipway.spec import ScheduleSpec

__all__ = ["multiplier"]


def multiplier(schedule: ScheduleSpec, step: int, steps: int) -> float:
    """Learning rate at a step as a share of the peak, dimensionless.

    Args:
        schedule: its shape.
        step: from 0.
        steps: of the whole training.
    """
    warm = round(schedule.warmup * steps)
    if step < warm:
        if schedule.warmup_shape == "constant":
            return schedule.warmup_from
        return schedule.warmup_from + (1 - schedule.warmup_from) * step / warm
    if schedule.name == "steps":
        return schedule.gamma ** sum(step >= round(m * steps) for m in schedule.milestones)
    done = (step - warm) / (steps - warm)
    if schedule.name == "cosine":
        return schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * done))
    if schedule.name == "one-cycle":
        return 1 - done
    return 1.0
