"""What backward passes share that compute something again: the number formats of the forward pass, and a refusal."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from skipway.errors import SkipwayError

__all__ = ["Autocast", "refuse_second_gradient"]


class Autocast(NamedTuple):
    """Whether and how operations are cast on a kind of device."""

    device: str
    dtype: torch.dtype
    enabled: bool

    @classmethod
    def now(cls, device: torch.device) -> Autocast:
        """As it is."""
        return cls(device.type, torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type))

    def again(self) -> AbstractContextManager[Any]:
        """Within it, operations are cast so."""
        if not self.enabled and not torch.is_autocast_enabled(self.device):
            return nullcontext()
        # Without the cache: from here it would hold casts without their graph, which older PyTorch then uses outside.
        return torch.autocast(self.device, dtype=self.dtype, enabled=self.enabled, cache_enabled=False)

    def off(self) -> AbstractContextManager[Any]:
        """Within it, operations are not cast."""
        return self._replace(enabled=False).again()


def refuse_second_gradient(memory: str) -> None:
    """Raise in a backward pass that is to be differentiated itself.

    Args:
        memory: the mode that cannot do that.

    Raises:
        SkipwayError: it is.
    """
    if torch.is_grad_enabled():
        raise SkipwayError(
            f'a gradient of a gradient (create_graph=True) with memory="{memory}"',
            "a mode whose backward pass can itself be differentiated",
            'model.set_memory("keep")',
        )
