"""Named slots of a branch and the parts that a design puts into them.

Shapes: N batch, C channels, H and W image, T tokens, D width. Layout ``"NCHW"`` has its channels in dimension 1,
``"NTD"`` (also plain ``(N, D)``) in the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from torch import nn

from skipway.errors import SkipwayError, UnknownNameError
from skipway.form import Op

__all__ = ["Layout", "Make", "Mode", "Norm", "Part", "Slots", "activation", "add_parts", "chain", "dropout", "ops_of"]

Layout = Literal["NCHW", "NTD"]
Mode = Literal["train", "eval"]
NormKind = Literal["batch", "layer", "rms", "none"]
MODES: Final[tuple[Mode, ...]] = ("train", "eval")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One module that may stand in a slot, with what a form says about it.

    Args:
        name: stem of the attribute name, e.g. ``"norm"``.
        make: (width, layout, may it overwrite its input) to a module.
        ops: its operations as a form names them; empty for what a form does not name (a constant shift).
        eval_ops: the same in eval mode, where that differs (dropout); None means `ops`.
        fresh: whether its output is always a new tensor, so that what follows may work in place.
    """

    name: str
    make: Callable[[int, Layout, bool], nn.Module]
    ops: tuple[Op, ...] = ()
    eval_ops: tuple[Op, ...] | None = None
    fresh: bool = True

    def ops_in(self, mode: Mode) -> tuple[Op, ...]:
        """Operations in one mode."""
        return self.eval_ops if mode == "eval" and self.eval_ops is not None else self.ops


@dataclass(frozen=True)
class Make:
    """A part's maker for modules that depend neither on width nor on layout; picklable, as models are.

    Args:
        factory: of the module.
        args: its arguments.
    """

    factory: Callable[..., nn.Module]
    args: tuple[Any, ...] = ()

    def __call__(self, width: int, layout: Layout, inplace: bool) -> nn.Module:
        """A new module."""
        return self.factory(*self.args)


Slots = Mapping[str, tuple[Part, ...]]


@dataclass(frozen=True, kw_only=True)
class Norm:
    """A normalisation: ``batch`` (N,C,H,W), ``layer`` or ``rms`` (…,D), ``none``.

    Args:
        kind: which one.
        eps: added to the variance; None takes PyTorch's default for the kind.

    Raises:
        UnknownNameError: no such kind.
    """

    kind: NormKind = "batch"
    eps: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(NormKind):
            raise UnknownNameError("norm", self.kind, get_args(NormKind))

    def make(self, width: int, layout: Layout, inplace: bool = False) -> nn.Module:
        """The module for `width` channels.

        Raises:
            SkipwayError: a batch norm on tokens, a layer or RMS norm on images, or ``"none"``.
        """
        if self.kind == "none" or (self.kind == "batch") != (layout == "NCHW"):
            raise SkipwayError(
                f"norm {self.kind!r} on layout {layout}", "norm 'batch' on images, 'layer' or 'rms' on tokens"
            )
        if self.kind == "batch":
            return nn.BatchNorm2d(width, eps=1e-5 if self.eps is None else self.eps)
        if self.kind == "layer":
            return nn.LayerNorm(width, eps=1e-5 if self.eps is None else self.eps)
        return nn.RMSNorm(width, eps=self.eps)

    def part(self) -> tuple[Part, ...]:
        """The norm as what fills a slot; nothing for ``"none"``."""
        if self.kind == "none":
            return ()
        return (Part(name="norm", make=self.make, ops=(Op("norm", self.kind),)),)


def _relu(_width: int, _layout: Layout, inplace: bool) -> nn.Module:
    return nn.ReLU(inplace=inplace)


_ACTIVATIONS: Final[dict[str, Callable[[int, Layout, bool], nn.Module]]] = {
    "relu": _relu,
    "gelu": Make(nn.GELU),
    "tanh": Make(nn.Tanh),
    "silu": Make(nn.SiLU),
}


def activation(name: str) -> tuple[Part, ...]:
    """The activation of that name as what fills a slot; nothing for ``"none"``.

    Raises:
        UnknownNameError: no such activation.
    """
    if name == "none":
        return ()
    if name not in _ACTIVATIONS:
        raise UnknownNameError("activation", name, [*_ACTIVATIONS, "none"])
    return (Part(name="act", make=_ACTIVATIONS[name], ops=(Op("activation", name),)),)


def dropout(p: float) -> tuple[Part, ...]:
    """Inverted dropout with probability `p`; nothing at 0."""
    if p == 0:
        return ()
    return (Part(name="dropout", make=Make(nn.Dropout, (p,)), ops=(Op("dropout", p),), eval_ops=(), fresh=False),)


def ops_of(parts: Iterable[Part], mode: Mode) -> tuple[Op, ...]:
    """Operations of several parts in order."""
    return tuple(op for part in parts for op in part.ops_in(mode))


def add_parts(into: nn.Module, parts: Iterable[Part], width: int, layout: Layout, *, fresh: bool) -> bool:
    """Append modules for `parts` to a container under unique names.

    Args:
        into: the container, a Sequential.
        parts: in order of execution.
        width: channels at this place.
        layout: of the tensors.
        fresh: whether the tensor that arrives has no other reader.

    Returns:
        Whether the tensor that leaves has no other reader.
    """
    for part in parts:
        number = 1 + sum(name.rstrip("0123456789") == part.name for name, _ in into.named_children())
        into.add_module(f"{part.name}{number}", part.make(width, layout, fresh))
        fresh = fresh or part.fresh
    return fresh


def chain(parts: tuple[Part, ...], width: int, layout: Layout, *, fresh: bool) -> nn.Module | None:
    """One module for several parts, None for none of them."""
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0].make(width, layout, fresh)
    sequence = nn.Sequential()
    add_parts(sequence, parts, width, layout, fresh=fresh)
    return sequence
