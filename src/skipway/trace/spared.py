"""Products that are not computed, where a run is to show its structure alone.

A graph is shapes and who read whom; the numbers matter only where the model looks at them itself (routing, early exits,
masks made of activations). So convolutions and products of activations give zeros of the right shape, at a fraction of
the time, until a number that comes of such zeros is looked at: then the run is given up, and the model has to run again
with everything computed. What does not depend on the batch (tables that a model may keep) is always computed.
"""

from __future__ import annotations

import itertools
import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from skipway.trace import ops
from skipway.trace.tape import Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from skipway.trace.modules import ModuleStack
    from skipway.trace.operation import Operation
    from skipway.trace.preserve import Preserved
    from skipway.trace.tape import Seen

__all__ = ["LookedAtError", "SparingTape", "has_hooks"]

_FROM_BATCH: Final = 1
_MADE_UP: Final = 2
# Of the other tensors they take shape, dtype and device.
_SHAPES_ONLY: Final = (ops.SOURCELESS - {"fill"}) | {"rand_like", "randn_like", "randint_like"}
# What they give beside numbers (positions of maxima, masks, seeds) decides nothing by itself.
_WITH_EXTRAS: Final = ops.POOL | ops.DROPOUT | ops.ATTENTION | {"max", "min"}
_ORDINARY: Final = (torch.Tensor, nn.Parameter)
# Where values are read past the dispatcher.
_READERS: Final = ("numpy", "tolist", "data_ptr", "__array__", "__dlpack__")


class LookedAtError(BaseException):
    """The model looked at a number that was not computed; no model is to catch this, as it may catch an Exception."""


class SparingTape(Tape):
    """A tape of a run in which products are not computed, until a number is looked at that comes of them.

    Args:
        stack: which module call runs.
        snapshot: what the model was like before.
    """

    def __init__(self, stack: ModuleStack, snapshot: Preserved) -> None:
        super().__init__(stack, snapshot, None)
        self.spared = self.looked_at = False
        self._origin: dict[Any, int] = {}
        self._now = 0

    def given(self, seen: Seen) -> None:
        """Take note of a tensor of the batch."""
        self._origin[seen[0]] = _FROM_BATCH

    def compute(
        self, known: Operation, inputs: list[Seen | None], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of an operation, or zeros in its place."""
        now = 0
        origin = self._origin
        for seen in inputs:
            if seen is not None and seen[0] in origin:
                now = max(now, origin[seen[0]])
        if now and known.op in _SHAPES_ONLY:
            now = 0
        self._now = now
        if now and not kwargs and not self.looked_at:
            stand_in = _STAND_INS.get(known.op)
            out = None if stand_in is None else stand_in(*args)
            if out is not None:
                self.spared, self._now = True, _MADE_UP
                return out
        return super().compute(known, inputs, args, kwargs)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._now = 0
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self._now:
            known, _, _, _, _, result, changed, _ = self.events[-1]
            if changed is not None:
                results = [seen for seen, _ in changed]
            else:
                results = result if isinstance(result, list) else [] if result is None else [result]
            self._note(known, results)
            if known.normalises and args[known.tail : known.tail + 1] == (True,):
                statistics = args[known.reads : known.tail]  # written to, though not every schema says so
                self._origin.update((self.storage(t), self._now) for t in statistics if isinstance(t, torch.Tensor))
        return out

    def _note(self, known: Operation, results: list[Seen]) -> None:
        """Take note of what an operation gave or wrote to: is it a number to look at?"""
        now, origin = self._now, self._origin
        for seen in results:
            origin[seen[0]] = max(now, origin.get(seen[0], 0))
        if now == _MADE_UP and known.op not in _WITH_EXTRAS and not (results and all(map(_is_floating, results))):
            self._look()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this is open, reading values past the dispatcher (as lists, as arrays) is noticed too."""
        own = {name: vars(torch.Tensor).get(name) for name in _READERS}
        for name in _READERS:
            setattr(torch.Tensor, name, self._watching(getattr(torch.Tensor, name)))
        try:
            yield
        finally:
            for name, before in own.items():
                if before is None:
                    delattr(torch.Tensor, name)
                else:
                    setattr(torch.Tensor, name, before)

    def _watching(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def watching(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._origin.get(self.storage(tensor)) == _MADE_UP:
                self._look()
            return read(tensor, *args, **kwargs)

        return watching

    def _look(self) -> None:
        self.looked_at = True
        raise LookedAtError


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether somebody else looks on: hooks may keep what they are shown."""
    if module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks:  # noqa: SLF001  # nothing public
        return True
    return any(m._forward_hooks or m._forward_pre_hooks for m in modules)  # noqa: SLF001  # as above


def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _output_padding: list[int],
    groups: int,
) -> torch.Tensor | None:
    if transposed or not _plain(x, weight, bias) or None in (layouts := {_layout(x), _layout(weight)}):
        return None
    last = torch.channels_last in layouts
    if last and (x.device.type != "cpu" or max(dilation) > 1):
        return None  # there it depends on the kernel
    (batch, channels, *sizes), (features, per_group, *kernel) = x.shape, weight.shape
    if channels != per_group * groups or features % groups or (bias is not None and bias.shape != (features,)):
        return None
    if not len(sizes) == len(kernel) == len(stride) == len(padding) == len(dilation):
        return None
    if min((batch, *weight.shape, *stride, *dilation)) < 1 or min(padding) < 0:
        return None
    steps = zip(sizes, kernel, stride, padding, dilation, strict=True)
    out = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in steps]
    if min(out) < 1:
        return None
    zeros = x.new_zeros((batch, *out, features) if last else (batch, features, *out))
    return zeros.permute(0, 3, 1, 2) if last else zeros


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    if not _plain(a, b) or not a.dim() == b.dim() == 2 or a.shape[1] != b.shape[0]:
        return None
    return a.new_zeros((a.shape[0], b.shape[1]))


def _addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    if not _plain(bias, a, b) or bias.dim() != 1 or bias.shape != b.shape[1:]:
        return None
    return _mm(a, b)


def _bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    if not _plain(a, b) or not a.dim() == b.dim() == 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        return None
    return a.new_zeros((a.shape[0], a.shape[1], b.shape[2]))


_STAND_INS: Final[dict[str, Callable[..., torch.Tensor | None]]] = {
    "convolution": _convolution, "mm": _mm, "addmm": _addmm, "bmm": _bmm,
}  # fmt: skip
"""Zeros in place of a result, or None where it is not certain what it would look like or whether there would be one."""


def _plain(first: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether all are ordinary floating tensors of one dtype on one device."""
    dtype, device = first.dtype, first.device
    return dtype.is_floating_point and all(
        type(t) in _ORDINARY and t.layout is torch.strided and t.dtype is dtype and t.device == device
        for t in (first, *others)
        if t is not None
    )


def _is_floating(seen: Seen) -> bool:
    return seen[4].is_floating_point or seen[4].is_complex


def _layout(tensor: torch.Tensor) -> torch.memory_format | None:
    """How a tensor lies in memory, if in one of the two orders in which PyTorch makes new ones."""
    order = tensor.stride()
    if order == _strides(tensor.shape):
        return torch.contiguous_format
    if tensor.dim() == 4:
        batch, channels, height, width = tensor.shape
        by_batch, by_row, by_column, by_channel = _strides((batch, height, width, channels))
        if order == (by_batch, by_channel, by_row, by_column):
            return torch.channels_last
    return None


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor that lies in memory as it is written."""
    sizes = itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1)
    return tuple(sizes)[::-1]
