"""The gate of the gating designs: σ of a convolution, or of a linear layer on tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from skipway.blocks import Block

__all__ = ["Gate", "gate_parameters"]


class Gate(nn.Module):
    """``g = σ(W x + b)``: (N,C,H,W) to (N,C',H/stride,W/stride), or (…,D) to (…,D'); in (0, 1).

    Args:
        block: the branch beside it, whose output's shape the gate has.
        bias: b at initialisation.
        kernel: side of the convolution's kernel in pixels.
    """

    def __init__(self, block: Block, *, bias: float, kernel: int = 1) -> None:
        super().__init__()
        self.bias = bias
        self.weight: nn.Conv2d | nn.Linear
        if block.layout == "NCHW":
            self.weight = nn.Conv2d(block.in_width, block.out_width, kernel, stride=block.stride, padding=kernel // 2)
        else:
            self.weight = nn.Linear(block.in_width, block.out_width)
        self.init_()

    def init_(self) -> None:
        """Set the bias; the weights keep the net's own initialisation."""
        assert self.weight.bias is not None
        nn.init.constant_(self.weight.bias, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The gate's values."""
        return torch.sigmoid(self.weight(x))


def gate_parameters(block: Block, kernel: int = 1) -> int:
    """Parameters of a `Gate`."""
    window = kernel * kernel if block.layout == "NCHW" else 1
    return (block.in_width * window + 1) * block.out_width
