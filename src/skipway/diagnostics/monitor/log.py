"""Where a monitor's numbers go: anything that takes a dict and a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from skipway.errors import SkipwayError

__all__ = ["Sink", "sink"]

Sink: TypeAlias = Callable[[dict[str, float], int], object]

# Weights & Biases and its kin; loggers of Lightning and Fabric.
_METHODS: Final = ("log", "log_metrics")


def sink(log: Any) -> Sink | None:
    """A function of (numbers, step) for what was given as ``log``.

    Args:
        log: an object with ``log(dict, step)`` or ``log_metrics(dict, step)``, TensorBoard's ``SummaryWriter``, a
            function of a dict and a step, or None.

    Raises:
        SkipwayError: it is none of these.
    """
    if log is None:
        return None
    for name in _METHODS:
        method = getattr(log, name, None)
        if callable(method):
            found: Sink = method
            return found
    add = getattr(log, "add_scalar", None)
    if callable(add):
        return lambda numbers, step: [add(name, value, step) for name, value in numbers.items()]
    if callable(log):
        function: Sink = log
        return function
    raise SkipwayError(
        f"log of type {type(log).__name__}",
        "an object with log(dict, step), log_metrics(dict, step) or add_scalar(name, value, step), or a function of a "
        "dict and a step",
    )
