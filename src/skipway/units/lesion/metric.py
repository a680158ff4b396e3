"""What a lesion is measured by: a sum over samples, and what it becomes at the end.

Shapes: N samples, T tokens, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from skipway.errors import SkipwayError, UnknownNameError
from skipway.trace.batch import output_tensors

if TYPE_CHECKING:
    from skipway.trace.batch import Batch

__all__ = ["Measure", "Metric", "Sample", "measure_of"]

Metric: TypeAlias = "Callable[..., float | torch.Tensor] | str"
NAMED: Final = ("error", "change", "influence")


@dataclass(frozen=True)
class Sample:
    """One batch: what the model is called with, its targets if there are any, and how many samples it holds."""

    batch: Batch
    targets: Any = None
    size: int = 1


@dataclass(frozen=True)
class Measure:
    """A metric.

    Args:
        words: what it is.
        unit: of its values.
        parts: of one output, its sample and the output of the whole model: what is added up, and its weight.
        root: whether the quotient of the sums is a square.
    """

    words: str
    parts: Callable[[Any, Sample, Any], tuple[float, float]]
    unit: str = ""
    root: bool = False

    def result(self, total: float, weight: float) -> float:
        """The metric over all batches."""
        if weight == 0:
            return math.nan
        value = total / weight
        return math.sqrt(value) if self.root else value


def measure_of(metric: Metric | None, loss: Callable[..., Any] | None, *, labelled: bool) -> Measure | None:
    """The metric that was asked for; None for ``"influence"``, which needs no deletion.

    Args:
        metric: a function, or one of the names; None for the default.
        loss: a function instead.
        labelled: whether there are targets.

    Raises:
        SkipwayError: both were given, one is no function, or targets are needed and missing.
        UnknownNameError: no metric of that name.
    """
    if metric is not None and loss is not None:
        raise SkipwayError("both metric and loss", "one of them: the loss, too, is a metric")
    given: object = metric if loss is None else loss
    if given is None:
        given = "error" if labelled else "change"
    if isinstance(given, str):
        return _named(given, labelled=labelled)
    if not callable(given):
        what = "metric" if loss is None else "loss"
        raise SkipwayError(
            f"{what} of type {type(given).__name__}",
            f"a function of the output{' and the targets' * labelled}, or one of: {', '.join(NAMED)}",
        )
    return _function(given, "metric" if loss is None else "loss", labelled=labelled)


def _named(name: str, *, labelled: bool) -> Measure | None:
    if name not in NAMED:
        raise UnknownNameError("metric", name, NAMED)
    if name == "influence":
        return None
    if name == "change":
        return Measure("relative change of the output ‖Δout‖ / ‖out‖, dimensionless", _change, root=True)
    if not labelled:
        raise SkipwayError(
            "metric 'error' without targets", "labelled batches", "data=[(inputs, targets), …], or metric=function"
        )
    return Measure("classification error", _error, "%")


def _function(function: Callable[..., Any], what: str, *, labelled: bool) -> Measure:
    name = getattr(function, "__name__", type(function).__name__)

    def parts(output: Any, sample: Sample, _whole: Any) -> tuple[float, float]:
        value = function(output, sample.targets) if labelled else function(output)
        return _number(value, what, name) * sample.size, sample.size

    return Measure(f"{what} {name}({'output, targets' if labelled else 'output'})", parts)


def _number(value: Any, what: str, name: str) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value.item())
    if isinstance(value, (int, float)):
        return float(value)
    if hasattr(value, "item") and getattr(value, "size", None) == 1 and isinstance(value.item(), (int, float)):
        return float(value.item())  # numpy's
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
    raise SkipwayError(
        f"{what} {name} gave a {type(value).__name__}{shape}", "a number, or a tensor with one element", "its mean()"
    )


def _error(output: Any, sample: Sample, _whole: Any) -> tuple[float, float]:
    logits = output
    if not isinstance(output, torch.Tensor):
        logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    targets = sample.targets
    if not isinstance(logits, torch.Tensor):
        raise SkipwayError(
            f"metric 'error' on an output of type {type(output).__name__}", "logits, or a record with logits",
            "metric=function",
        )  # fmt: skip
    if not isinstance(targets, torch.Tensor) or logits.shape[:-1] != targets.shape:
        given = tuple(targets.shape) if isinstance(targets, torch.Tensor) else type(targets).__name__
        raise SkipwayError(
            f"metric 'error' on logits of shape {tuple(logits.shape)} and targets {given}",
            f"targets of shape {tuple(logits.shape[:-1])}: one class number for each row of logits",
        )
    counted = targets >= 0  # others are to be ignored: −100 in PyTorch's losses
    return 100.0 * float(((logits.argmax(-1) != targets) & counted).sum()), float(counted.sum())


def _change(output: Any, _sample: Sample, whole: Any) -> tuple[float, float]:
    now = [t for t in output_tensors(output) if t.is_floating_point()]
    before = [t for t in output_tensors(whole) if t.is_floating_point()]
    if not before:
        raise SkipwayError("the model's output holds no floating tensor", "one to compare", "metric=function")
    if [t.shape for t in now] != [t.shape for t in before]:
        raise SkipwayError("the output has other shapes without the unit", "outputs to compare", "metric=function")
    pairs = [(_wide(a), _wide(b)) for a, b in zip(now, before, strict=True)]
    return sum(float((a - b).square().sum()) for a, b in pairs), sum(float(b.square().sum()) for _, b in pairs)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.device.type == "mps" else tensor.double()  # Apple's GPUs have no float64
