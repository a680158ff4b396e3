"""Convolutional branches: basic (3×3, 3×3), bottleneck (1×1, 3×3, 1×1) and any other chain of convolutions.

Shapes: N batch, C channels, H and W image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from skipway.blocks.block import Block, SequentialBranch, Style, check_slots
from skipway.blocks.slot import Layout, Mode, Slots, add_parts, ops_of
from skipway.form import Op

__all__ = ["Conv", "ConvBlock", "basic", "bottleneck"]


@dataclass(frozen=True, kw_only=True)
class Conv:
    """One convolution: (N,C,H,W) to (N,C',⌈H/stride⌉,⌈W/stride⌉), no bias (a norm follows or precedes).

    Args:
        kernel: side of the kernel in pixels, odd.
        in_width: channels read.
        out_width: channels written.
        stride: in pixels.
        groups: of channels.
    """

    kernel: int
    in_width: int
    out_width: int
    stride: int = 1
    groups: int = 1

    @property
    def op(self) -> Op:
        """As a form names it, e.g. ``conv3x3/2``."""
        kind = "conv" if self.groups == 1 else "dwconv" if self.groups == self.in_width else "gconv"
        window = f"{self.kernel}x{self.kernel}"
        return Op("weight", f"{kind}{window}" + (f"/{self.stride}" if self.stride != 1 else ""))

    def build(self) -> nn.Conv2d:
        """The module."""
        return nn.Conv2d(
            self.in_width,
            self.out_width,
            self.kernel,
            stride=self.stride,
            padding=self.kernel // 2,
            groups=self.groups,
            bias=False,
        )


@dataclass(frozen=True, kw_only=True)
class ConvBlock(Block):
    """A chain of convolutions with slots ``start``, ``between`` (filled anew in every gap) and ``end``.

    Args:
        convs: in order of execution.
    """

    style: ClassVar[Style] = "conv"
    convs: tuple[Conv, ...]

    @property
    def in_width(self) -> int:
        """Channels of the first convolution's input."""
        return self.convs[0].in_width

    @property
    def out_width(self) -> int:
        """Channels of the last convolution's output."""
        return self.convs[-1].out_width

    @property
    def stride(self) -> int:
        """Product of the strides."""
        total = 1
        for conv in self.convs:
            total *= conv.stride
        return total

    @property
    def layout(self) -> Layout:
        """Images."""
        return "NCHW"

    def slots(self) -> dict[str, int]:
        """Slots and widths; ``between`` shows that of the first gap."""
        return {"start": self.in_width, "between": self.convs[0].out_width, "end": self.out_width}

    def ops(self, slots: Slots, mode: Mode) -> tuple[Op, ...]:
        """Operations in order of execution."""
        inner: list[Op] = []
        for i, conv in enumerate(self.convs):
            inner += ops_of(slots.get("between", ()), mode) if i else ()
            inner.append(conv.op)
        return (*ops_of(slots.get("start", ()), mode), *inner, *ops_of(slots.get("end", ()), mode))

    def build(self, slots: Slots) -> nn.Module:
        """The branch: children ``conv1``, ``norm1``, ``act1`` … in order of execution."""
        check_slots(self, slots)
        branch = SequentialBranch()
        add_parts(branch, slots.get("start", ()), self.in_width, "NCHW", fresh=False)
        for i, conv in enumerate(self.convs):
            if i:
                add_parts(branch, slots.get("between", ()), conv.in_width, "NCHW", fresh=True)
            branch.add_module(f"conv{i + 1}", conv.build())
        add_parts(branch, slots.get("end", ()), self.out_width, "NCHW", fresh=True)
        return branch

    def resized(self, *, in_width: int, out_width: int) -> ConvBlock:
        """Other outer widths, stride 1."""
        convs = [replace(conv, stride=1) for conv in self.convs]
        convs[0] = replace(convs[0], in_width=in_width)
        convs[-1] = replace(convs[-1], out_width=out_width)
        return ConvBlock(convs=tuple(convs))

    def split(self) -> tuple[ConvBlock, ...]:
        """One block for each convolution."""
        return tuple(ConvBlock(convs=(conv,)) for conv in self.convs)


def basic(in_width: int, width: int, stride: int = 1) -> ConvBlock:
    """Two 3×3 convolutions, the stride on the first (arXiv 1512.03385, figure 5 left)."""
    return ConvBlock(
        convs=(
            Conv(kernel=3, in_width=in_width, out_width=width, stride=stride),
            Conv(kernel=3, in_width=width, out_width=width),
        )
    )


def bottleneck(in_width: int, width: int, stride: int = 1, *, stride_on: int = 2) -> ConvBlock:
    """1×1 to `width`, 3×3, 1×1 to 4·`width` (arXiv 1512.03385, figure 5 right).

    Args:
        in_width: channels read.
        width: inner channels.
        stride: of the block.
        stride_on: which convolution holds the stride: 2, the 3×3, as torchvision has it, or 1, as first released.
    """
    return ConvBlock(
        convs=(
            Conv(kernel=1, in_width=in_width, out_width=width, stride=stride if stride_on == 1 else 1),
            Conv(kernel=3, in_width=width, out_width=width, stride=stride if stride_on == 2 else 1),
            Conv(kernel=1, in_width=width, out_width=4 * width),
        )
    )
