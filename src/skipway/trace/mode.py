"""A dispatch mode without the detour through the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["DispatchMode", "in_backward", "with_gradients"]


def with_gradients(needed: bool) -> AbstractContextManager[None]:
    """Within it a graph is kept for gradients if the model needs one itself, else none."""
    return torch.enable_grad() if needed else torch.no_grad()


def in_backward() -> bool:
    """Whether a backward pass is going on: of a model that takes gradients in its forward (forces from an energy)."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001  # nothing public says it


class DispatchMode(TorchDispatchMode):
    """Base of our dispatch modes.

    Newer PyTorch wraps the ``__torch_dispatch__`` of every mode so that the compiler leaves it alone; the first call
    then imports the whole compiler (seconds), and every later one goes through three more Python frames. Our modes only
    run eagerly, so they say that they need no such care; versions that do not ask are not affected.

    Operators that take functions (flex_attention, cond) come as they are, as one operation.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
