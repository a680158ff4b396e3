"""The number format of the stream where autocast makes branches 16 bits wide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from skipway.designs import State

__all__ = ["in_fp32"]

_NARROW = (torch.bfloat16, torch.float16)


def in_fp32(state: State) -> State:
    """The state with tensors of 16 bits as float32 under autocast; without it as it is: its weights read no other."""
    return _widened(state) if isinstance(state, Tensor) else tree_map(_widened, state)


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in _NARROW and torch.is_autocast_enabled(value.device.type):
        return value.float()
    return value
