"""A function mode that does nothing."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

__all__ = ["Unfused"]


class Unfused(TorchFunctionMode):
    """Its presence alone switches off fused paths (attention, transformer layers), as in a recorded run."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))
