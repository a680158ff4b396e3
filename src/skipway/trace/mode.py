"""A dispatch mode without the detour through the compiler."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode"]


class DispatchMode(TorchDispatchMode):
    """Base of our dispatch modes.

    Newer PyTorch wraps the ``__torch_dispatch__`` of every mode so that the compiler leaves it alone; the first call
    then imports the whole compiler (seconds), and every later one goes through three more Python frames. Our modes only
    run eagerly, so they say that they need no such care; versions that do not ask are not affected.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
