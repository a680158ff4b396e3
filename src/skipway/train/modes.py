"""Train and eval mode of all modules of a net, put back one by one: a norm that somebody froze stays frozen."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["evaluated", "set_training_", "trained"]


def set_training_(net: nn.Module) -> None:
    """Train mode for a net that is in eval mode; one that is in train mode keeps those of its parts that are not."""
    if not net.training:
        net.train()


@contextmanager
def evaluated(net: nn.Module) -> Iterator[None]:
    """Within it, all is in eval mode."""
    with _put_back(net):
        net.eval()
        yield


@contextmanager
def trained(net: nn.Module) -> Iterator[None]:
    """Within it, the net is in the mode that it is trained in, as `set_training_` has it."""
    with _put_back(net):
        set_training_(net)
        yield


@contextmanager
def _put_back(net: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
