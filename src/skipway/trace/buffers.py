"""A model's buffers, copied and put back."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Buffers"]

_SMALL: Final = 1 << 16
_JOINED: Final = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}
)


class Buffers:
    """Copies of buffers.

    Statistics of norms (vectors) and counters (scalars) are many and small: those of one kind are copied and compared
    as one tensor, a quarter of the time of one by one.
    """

    def __init__(self, buffers: Iterable[torch.Tensor]) -> None:
        self._places: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._single: list[tuple[torch.Tensor, torch.Tensor]] = []
        groups: defaultdict[Any, list[torch.Tensor]] = defaultdict(list)
        with torch.no_grad():
            for buffer in buffers:
                self._places.append((buffer, buffer.data, buffer.data_ptr()))
                if _joins(buffer):
                    groups[buffer.dim(), buffer.dtype, buffer.device].append(buffer)
                else:
                    self._single.append((buffer, buffer.clone()))
            self._groups = [(members, _joined(members)) for members in groups.values()]

    def restore(self) -> None:
        """Put back what differs."""
        with torch.no_grad():
            for buffer, data, address in self._places:
                if buffer.data_ptr() != address or buffer.shape != data.shape:
                    buffer.data = data
            for members, copies in self._groups:
                if not torch.equal(_joined(members), copies):
                    pieces = copies.split([m.numel() for m in members]) if members[0].dim() else copies.unbind()
                    _put_back(zip(members, pieces, strict=True))
            _put_back(self._single)


def _joins(buffer: torch.Tensor) -> bool:
    return (
        type(buffer) is torch.Tensor
        and buffer.dim() < 2
        and buffer.dtype in _JOINED
        and buffer.layout is torch.strided
        and buffer.device.type != "meta"
        and buffer.numel() <= _SMALL
    )


def _joined(members: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(members) if members[0].dim() else torch.stack(members)


def _put_back(copies: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for buffer, copy in copies:
        if buffer.device.type != "meta" and not torch.equal(buffer, copy):
            buffer.copy_(copy)
