"""Loss and error: of a batch, and of a whole test set.

Shapes: N batch, T tokens, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from skipway.errors import ModelRunError, SkipwayError
from skipway.train.modes import evaluated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_fabric import Fabric
    from torch import nn

    from skipway.data import DataInfo

__all__ = ["Score", "check_output", "cross_entropy", "logits_of", "score"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Result of a test.

    Args:
        loss: mean cross-entropy, in nats.
        error: share of wrong answers in percent.
        count: answers: samples, or tokens of all samples.
    """

    loss: float
    error: float
    count: int


def logits_of(output: Any) -> Tensor:
    """The logits (N,K) or (N,T,K) in whatever a model returns: a tensor, or a record with ``logits``.

    Raises:
        ModelRunError: there are none.
    """
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, dict):
        logits = output.get("logits", output.get("out"))
    if not isinstance(logits, Tensor):
        raise ModelRunError(f"the model returns {type(output).__name__}", "a tensor of logits, or a record with them")
    return logits


def cross_entropy(output: Any, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy in nats, in float32.

    Args:
        output: of the model; its logits are (N,K) or (N,T,K).
        target: (N,) or (N,T) class numbers.
        label_smoothing: in [0, 1).
    """
    logits = logits_of(output)
    return F.cross_entropy(logits.flatten(0, -2).float(), target.flatten(), label_smoothing=label_smoothing)


@torch.no_grad()
def score(fabric: Fabric, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
    """Loss and error of a model over a test set, in eval mode; the modes of all its modules are put back.

    Args:
        fabric: for precision and devices; each rank brings its own part of the set.
        model: as `Fabric.setup_module` returned it.
        batches: inputs and targets.
    """
    # Apple's GPUs have no float64.
    dtype = torch.float32 if fabric.device.type == "mps" else torch.float64
    totals = torch.zeros(3, dtype=dtype, device=fabric.device)
    with evaluated(model):
        for x, y in batches:
            logits = logits_of(model(x)).flatten(0, -2).float()
            target = y.flatten()
            loss = F.cross_entropy(logits, target, reduction="sum")
            totals += torch.stack(
                [loss.to(dtype), (logits.argmax(1) != target).sum().to(dtype), totals.new_tensor(len(target))]
            )
    summed = fabric.all_reduce(totals, reduce_op="sum")
    assert isinstance(summed, Tensor)
    loss_sum, wrong, count = summed.tolist()
    return Score(loss=loss_sum / count, error=100 * wrong / count, count=int(count))


def check_output(model: nn.Module, x: Tensor, y: Tensor, info: DataInfo) -> None:
    """Run a model once, in eval mode and without a trace, and see whether its output fits the data.

    Args:
        model: on the device of `x`.
        x: a few inputs.
        y: their targets.
        info: of the data.

    Raises:
        ModelRunError: the model does not run on them.
        SkipwayError: it has fewer outputs than there are classes, or an output of another shape.
    """
    try:
        with evaluated(model), torch.no_grad(), torch.random.fork_rng(enabled=True):
            logits = logits_of(model(x))
    except SkipwayError:
        raise
    except Exception as error:
        raise ModelRunError(
            f"the model failed on {tuple(x.shape)}, samples of {info.name}: {type(error).__name__}: {error}",
            "a model that reads such samples",
            "--image-size for nets that are made for another size" if info.task == "image" else "",
        ) from error
    if logits.shape[:-1] != y.shape:
        raise SkipwayError(
            f"logits of shape {tuple(logits.shape)} for targets of shape {tuple(y.shape)}",
            f"{(*y.shape, info.num_classes)}: one row of logits for each target",
        )
    if logits.shape[-1] < info.num_classes:
        raise SkipwayError(
            f"{info.name} has {info.num_classes} classes, the model's head has {logits.shape[-1]} outputs",
            f"at least {info.num_classes} outputs",
            "num_classes of your factory",
        )
