"""Run a model as if an in-place write had gone to a copy of the memory that one name in its code then stands for.

``x.relu_()`` as a statement, or ``x[:, :4] = y``, gives nothing back that could be made another tensor: what the code
reads afterwards it reads by name. So the copy gets the name, in the Python frame that holds it, as a debugger would do.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

import skipway
from skipway.trace.addressed import AddressedMode
from skipway.trace.modules import ModuleStack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from torch import nn

    from skipway.trace.graph import Address, Graph

__all__ = ["Rename", "renamed"]

# Code that is nobody's model: PyTorch's own, ours that watches.
_PASSED_OVER: Final = (
    f"{Path(torch.__file__).parent}{os.sep}",
    *(f"{Path(skipway.__file__).parent / part}{os.sep}" for part in ("trace", "diagnostics")),
)
_WRITES_THROUGH: Final = sys.version_info >= (3, 13)


@dataclass(frozen=True, slots=True)
class Rename:
    """Which name the copy of a write gets.

    Args:
        which: the number of the name among those that hold the memory when it is written, the innermost frame's first.
        rise: how many module calls lie between the write and the last frame whose names count.
    """

    which: int
    rise: int


@contextmanager
def renamed(model: nn.Module, graph: Graph, writes: Mapping[int, Rename], names: dict[int, int]) -> Iterator[None]:
    """While it is open, writes of a recorded run go to a copy; `names` gets how many there are where one was given."""
    plan: dict[Address, tuple[int, Rename]] = {}
    for i, rename in writes.items():
        address = graph.address(graph.nodes[i])
        if address is not None:
            plan[address] = (i, rename)
    with ModuleStack(model) as stack, _Renamed(plan, stack, names):
        yield


class _Renamed(AddressedMode[tuple[int, Rename]]):
    def __init__(self, plan: Mapping[Address, tuple[int, Rename]], stack: ModuleStack, names: dict[int, int]) -> None:
        super().__init__(plan, stack)
        self._names = names
        self._copies: dict[int, tuple[int, torch.Tensor]] = {}  # by its memory: of which memory, the copy

    def at(
        self, planned: tuple[int, Rename], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        target = args[0] if args else None
        if not isinstance(target, torch.Tensor) or _memory(target) in self._copies:
            return func(*args, **kwargs)
        copy = self._halfway(target, args)
        if copy is None:
            copy = target.as_strided((target.untyped_storage().nbytes() // target.itemsize,), (1,), 0).clone()
            self._copies[_memory(copy)] = (_memory(target), copy)
        result = func(_in(copy, target), *args[1:], **kwargs)
        i, rename = planned
        names = [(f, n, t) for f in _frames(rename.rise) for n, t in f.f_locals.items() if _holds(t, target)]
        if rename.which < len(names):
            frame, name, value = names[rename.which]
            _bind(frame, name, _in(copy, value))
            self._names[i] = len(names)
        return result

    def _halfway(self, target: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
        """The copy that the first half of ``x[i] += y`` wrote to; the second writes its result to where it is."""
        for value in args[1:]:
            if isinstance(value, torch.Tensor) and _memory(value) in self._copies:
                source, copy = self._copies[_memory(value)]
                if source == _memory(target):
                    return copy
        return None


def _frames(rise: int) -> Iterator[FrameType]:
    """The model's own frames around a call, innermost first, through `rise` module calls and no further."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the only way to it
    while frame is not None and rise >= 0:
        code = frame.f_code
        if not code.co_filename.startswith(_PASSED_OVER):
            yield frame
        elif code is torch.nn.Module._call_impl.__code__:  # noqa: SLF001  # what every call of a module runs
            rise -= 1
        frame = frame.f_back


def _holds(value: object, target: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.dtype == target.dtype
        and _memory(value) == _memory(target)
    )


def _memory(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _in(copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor shows of its memory, shown of a copy of that memory."""
    return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _bind(frame: FrameType, name: str, value: torch.Tensor) -> None:
    names = frame.f_locals
    names[name] = value
    if not _WRITES_THROUGH:  # before Python 3.13 the names are a copy, which is written back as debuggers do
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
