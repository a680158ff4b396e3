"""What can be refused before a run takes its folder: a net that does not fit the data, or that cannot be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from skipway.errors import SkipwayError
from skipway.train.evaluate import check_output

if TYPE_CHECKING:
    from torch import nn

    from skipway.data import Dataset

__all__ = ["check_real", "check_trainable"]


def check_real(net: nn.Module) -> None:
    """See that a net has weights, before it is moved to a device.

    Raises:
        SkipwayError: it is on the meta device.
    """
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if tensor.is_meta:
            raise SkipwayError(f"{name} of the model is on the meta device, without values", "a net with weights")


def check_trainable(net: nn.Module, data: Dataset, batch_size: int, *, rank: int = 0, world_size: int = 1) -> None:
    """See that a net can be trained on a data set; it is run once, which gives lazy parameters their shape.

    Args:
        net: on the device of the data.
        data: what it is trained on.
        batch_size: samples in a step, over all processes.
        rank: of this process.
        world_size: number of processes.

    Raises:
        ModelRunError: the net does not run on the data.
        SkipwayError: its output does not fit them, nothing of it is to be trained, or its state is no tensors; the
            batch is larger than the training set or cannot be shared out.
    """
    data.train(batch_size=batch_size, seed=0, rank=rank, world_size=world_size)
    x, y = data.sample(min(2, data.info.train_size))
    check_output(net, x, y, data.info)
    if not any(p.requires_grad for p in net.parameters()):
        raise SkipwayError("no parameter of the model needs a gradient", "something to train")
    for key, value in net.state_dict().items():
        if not isinstance(value, Tensor):
            raise SkipwayError(
                f"{key} in the model's state dict is of type {type(value).__name__}",
                "tensors, since nothing is pickled",
                "a buffer, or get_extra_state that gives a tensor",
            )
