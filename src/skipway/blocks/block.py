"""What every branch offers: widths, ports, named slots, its operations, and how it is built. A branch knows no skip."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from skipway.blocks.rebuild import Rebuilding, run_through
from skipway.blocks.slot import Layout, Mode, Slots
from skipway.errors import SkipwayError, UnknownNameError
from skipway.form import Op

__all__ = [
    "SCALES_AND_WEIGHTS",
    "Block",
    "SequentialBranch",
    "TokenBlock",
    "check_slots",
    "last_scale_or_weight",
    "weight_layers",
]

Style = Literal["conv", "token", "layer", "opaque"]
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
_WEIGHTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
SCALES_AND_WEIGHTS = _NORMS + _WEIGHTS


@dataclass(frozen=True, kw_only=True)
class Block(ABC):
    """Plan of one branch, without tensors: widths, ports, slots."""

    style: ClassVar[Style]
    ports: ClassVar[tuple[str, ...]] = ("x",)

    @property
    @abstractmethod
    def in_width(self) -> int:
        """Channels that it reads."""

    @property
    @abstractmethod
    def out_width(self) -> int:
        """Channels that it writes."""

    @property
    @abstractmethod
    def stride(self) -> int:
        """By which it shrinks an image; 1 on tokens."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Of its tensors."""

    @abstractmethod
    def slots(self) -> dict[str, int]:
        """Names of the slots and the width at each, in order of execution."""

    @abstractmethod
    def ops(self, slots: Slots, mode: Mode) -> tuple[Op, ...]:
        """Operations in order of execution with the slots filled."""

    @abstractmethod
    def build(self, slots: Slots) -> nn.Module:
        """The branch as a module, its slots filled.

        Raises:
            UnknownNameError: a slot that this block does not offer.
        """

    @abstractmethod
    def resized(self, *, in_width: int, out_width: int) -> Block:
        """The same block between other widths, at stride 1; its inner width stays."""

    def split(self) -> tuple[Block, ...]:
        """The block as several of one weight layer each.

        Raises:
            SkipwayError: it has no such parts.
        """
        raise SkipwayError(
            f"a branch of kind {self.style!r} cannot be split into single layers", "a convolutional backbone's branch"
        )


def check_slots(block: Block, slots: Slots) -> None:
    """Raise if a slot is filled that `block` does not offer."""
    offered = block.slots()
    for name in slots:
        if name not in offered:
            raise UnknownNameError(f"slot of {type(block).__name__}", name, offered)


@dataclass(frozen=True, kw_only=True)
class TokenBlock(Block):
    """A branch on tokens, (…,D) to (…,D'), whose widths are its fields."""

    reads: int
    writes: int

    @property
    def in_width(self) -> int:
        """Width of the input."""
        return self.reads

    @property
    def out_width(self) -> int:
        """Width of the output."""
        return self.writes

    @property
    def stride(self) -> int:
        """Tokens are not strided."""
        return 1

    @property
    def layout(self) -> Layout:
        """Tokens."""
        return "NTD"


class SequentialBranch(Rebuilding, nn.Sequential):
    """A branch that is a chain of modules, in order of execution."""

    def forward(self, x: Tensor) -> Tensor:
        """One module behind the other."""
        return run_through(list(self), x, rebuild=self.rebuild)


def weight_layers(branch: nn.Module | Sequence[nn.Module]) -> list[nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d]:
    """Convolutions and linear layers of a branch, in order of execution.

    Args:
        branch: one of ours, which registers its layers in that order, or the layers of anybody's in that order.
    """
    return [module for module in _modules(branch) if isinstance(module, _WEIGHTS)]


def last_scale_or_weight(branch: nn.Module | Sequence[nn.Module]) -> nn.Module:
    """The last norm with a gain, or weight layer, of a branch: what zero-initialisation sets to zero.

    Args:
        branch: as for `weight_layers`.

    Raises:
        SkipwayError: the branch has neither.
    """
    found = [m for m in _modules(branch) if isinstance(m, SCALES_AND_WEIGHTS) and m.weight is not None]
    if not found:
        raise SkipwayError(
            "zero_init on a branch without a norm, convolution or linear layer of its own",
            "a branch whose last such layer can be set to zero",
        )
    return found[-1]


def _modules(branch: nn.Module | Sequence[nn.Module]) -> Iterable[nn.Module]:
    return branch.modules() if isinstance(branch, nn.Module) else branch
