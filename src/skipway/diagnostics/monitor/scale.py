"""By how much a GradScaler scaled the loss: gradients on the stream are as much too large."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.trace.batch import tensors_of
from skipway.trace.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ScaleWatch"]

_watches: Final[list[ScaleWatch]] = []


class ScaleWatch:
    """While it is open, sees the first scaling of a loss by any GradScaler."""

    def __init__(self) -> None:
        self.factor: torch.Tensor | None = None
        """The factor, on its device; None if no GradScaler came by."""

    def open(self) -> None:
        """Watch from now on."""
        if self in _watches:
            return
        _SCALE.take()
        _watches.append(self)

    def close(self) -> None:
        """Watch no longer."""
        if self in _watches:
            _watches.remove(self)
            _SCALE.give()


@contextmanager
def _watched() -> Iterator[None]:
    """The method `scale` of GradScaler and of those derived from it (the sharded one) tells the watches."""
    with ExitStack() as put_back:
        for kind in _kinds(torch.amp.GradScaler):
            original = vars(kind).get("scale")
            if original is not None:
                put_back.callback(setattr, kind, "scale", original)
                setattr(kind, "scale", _telling(original))  # noqa: B010  # mypy knows it as a method
        yield


_SCALE: Final = Shared(_watched)


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        # One that is switched off hands the loss on as it is.
        waiting = [watch for watch in _watches if watch.factor is None] if scaled is not outputs else []
        tensors = tensors_of(outputs) if waiting else []
        if tensors:
            with torch.no_grad():
                one = torch.ones((), device=tensors[0].device)
                factor = original(scaler, one)  # a tensor: reading a number would wait for the device
            for watch in waiting:
                watch.factor = factor
        return scaled

    return scale


def _kinds(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [kind, *(k for child in children for k in _kinds(child))]
