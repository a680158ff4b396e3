"""A branch run once on zeros: what it reads and writes, and in which order it calls its layers.

The run is that of a copy, and the branch itself is not touched. Large branches, and those that are not on the
processor, are run on the meta device, which holds shapes and no numbers: neither memory nor time depend on their size.
Small ones are run as they are, since code for shapes alone is part of PyTorch's compiler, which takes a second to load.

Shapes: C channels, S side of an image, T tokens, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from skipway.blocks.block import SCALES_AND_WEIGHTS
from skipway.blocks.slot import Layout

__all__ = ["Trial", "try_branch"]

_SIDES: Final = (32, 56)  # the second is for windows of 7
# An image that shrank by more than this was pooled rather than strided.
_STEEPEST: Final = 16
# Numbers in a branch that is copied and run as it is.
_SMALL: Final = 2**20
_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a run told.

    Args:
        reads: channels read.
        writes: channels written.
        shrunk: by which the image shrank, no whole number where it was not padded; None where it was pooled to a few
            pixels; 1 on tokens.
        calls: paths of the norms and weight layers, in the order of their last calls.
        spares_input: whether no layer worked in place on the input.
    """

    reads: int
    writes: int
    shrunk: float | None
    calls: tuple[str, ...]
    spares_input: bool


def try_branch(module: nn.Module, widths: Sequence[int], layout: Layout) -> Trial | None:
    """Run a copy of a branch in eval mode, on each width in turn until one fits.

    Args:
        module: the branch.
        widths: channels that it may read, the likeliest first.
        layout: of its input.

    Returns:
        What the first width that fits told; None where none does, or the code needs more than shapes.
    """
    if not widths or any(hasattr(part, "_orig_mod") for part in module.modules()):  # the compiler would compile it
        return None
    held = _tensors(module)
    if any(is_lazy(tensor) for tensor in held):
        return None
    small = all(t.device.type == "cpu" for t in held) and sum(t.numel() for t in held) <= _SMALL
    # Random numbers that the branch draws are none of the user's.
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu" if small else "meta"):
        try:
            twin = _twin(module, held, small)
        except Exception:  # noqa: BLE001  # what anybody's module may hold cannot always be copied
            return None
        inputs = ((width, shape) for width in widths for shape in _shapes(width, widths, layout))
        runs = (_tolerant(twin, torch.zeros(shape, dtype=_dtype(module)), width, layout) for width, shape in inputs)
        return next((run for run in runs if run is not None), None)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters, buffers, and what else modules hold by name."""
    return [
        value
        for part in module.modules()
        for value in (*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values())
        if isinstance(value, Tensor)
    ]


def _twin(module: nn.Module, tensors: list[Tensor], small: bool) -> nn.Module:
    """A copy in eval mode without hooks, whose tensors have shapes alone unless it is small."""
    memo: dict[int, Any] = {}
    for tensor in tensors:
        empty = tensor.detach().clone() if small else torch.empty_like(tensor, device="meta", requires_grad=False)
        as_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if as_parameter else empty
    twin = copy.deepcopy(module, memo).eval()
    for part in twin.modules():
        part._forward_hooks.clear()  # noqa: SLF001  # there is no other way to take off what others put on
        part._forward_pre_hooks.clear()  # noqa: SLF001
    return twin


def _dtype(module: nn.Module) -> torch.dtype:
    floating = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    return next(floating, torch.get_default_dtype())


def _shapes(width: int, widths: Sequence[int], layout: Layout) -> Iterator[tuple[int, ...]]:
    if layout == "NCHW":
        yield from ((1, width, side, side) for side in _SIDES)
        return
    # As many tokens as no layer is wide: what takes them for channels must not fit by chance.
    tokens = next(count for count in range(16, 17 + len(widths)) if count not in widths)
    yield 1, tokens, width
    yield tokens, width


class _Uses(TorchFunctionMode):
    """Notes layers whose weights an operation reads: not all are called, as the last one of PyTorch's attention.

    Args:
        twin: that owns them.
        calls: where to note them.
    """

    def __init__(self, twin: nn.Module, calls: dict[str, None]) -> None:
        super().__init__()
        layers = ((path, part) for path, part in twin.named_modules() if isinstance(part, SCALES_AND_WEIGHTS))
        self.owners = {id(part.weight): path for path, part in layers if part.weight is not None}
        self.calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note them, and do what is done."""
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") != "__get__":  # a look at a shape is no use
            for value in (*args, *kwargs.values()):
                path = self.owners.get(id(value))
                if path is not None:
                    _note(self.calls, path)
        return func(*args, **kwargs)


def _note(calls: dict[str, None], path: str) -> None:
    calls.pop(path, None)
    calls[path] = None


def _tolerant(twin: nn.Module, x: Tensor, width: int, layout: Layout) -> Trial | None:
    try:
        return _run(twin, x, width, layout)
    except Exception:  # noqa: BLE001  # anybody's code refuses what does not fit in its own way
        return None


def _run(twin: nn.Module, x: Tensor, width: int, layout: Layout) -> Trial:
    """Run.

    Raises:
        ValueError: what comes back is no such tensor.
        Exception: whatever the branch raises.
    """
    calls: dict[str, None] = {}
    spares = True

    def before(part: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal spares
        spares = spares and not (getattr(part, "inplace", False) and any(arg is x for arg in args))
        if isinstance(part, _BATCH_NORMS) and args[0].shape[1] != part.num_features:  # meta tensors pass unchecked
            raise ValueError

    def called(path: str) -> Any:
        return lambda *_: _note(calls, path)

    handles = []
    for path, part in twin.named_modules():
        handles.append(part.register_forward_pre_hook(before))
        if isinstance(part, SCALES_AND_WEIGHTS):
            handles.append(part.register_forward_hook(called(path)))
    version = x._version
    try:
        with _Uses(twin, calls):
            y = twin(x)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(y, Tensor) or y.dim() != x.dim():
        raise ValueError
    return Trial(
        reads=width, writes=y.shape[1 if layout == "NCHW" else -1], shrunk=_shrunk(x, y) if layout == "NCHW" else 1,
        calls=tuple(calls), spares_input=spares and x._version == version,
    )  # fmt: skip


def _shrunk(x: Tensor, y: Tensor) -> float | None:
    before, behind = x.shape[2], y.shape[2]
    return before / behind if behind * _STEEPEST >= before else None
