"""A wide residual net whose first convolutions do nothing: a real report, rebuilt.

The report: https://github.com/hypnopump/keras-wrn/pull/2; the same slip in another residual net is
https://github.com/shaohua0116/Multiview2Novelview/issues/11. In each block the second convolution reads what the first
one reads, instead of its output. The shapes fit, so nothing complains.

What is to be seen: nothing, it trains. The first convolution of every block, nine here, never gets a gradient. Convict
it with one command:

    skipway inspect examples/wide_resnet_dead_conv.py:build

and compare with the mended model, ``examples/wide_resnet_dead_conv.py:build_fixed``.

N batch, C channels, H height, W width.
"""

from __future__ import annotations

import itertools

import torch
from torch import nn


class Block(nn.Module):
    """Pre-activation block of a wide residual net (arXiv 1605.07146), or what the report made of it."""

    def __init__(self, inside: int, outside: int, stride: int, *, faulty: bool) -> None:
        super().__init__()
        self.faulty = faulty
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, 1 if faulty else stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(inside if faulty else outside, outside, 3, stride if faulty else 1, 1, bias=False)
        fits = inside == outside and stride == 1
        self.shortcut = nn.Identity() if fits else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The second convolution reads `before`, or the first one's output."""
        before = self.norm1(x).relu()
        h = self.conv1(before)
        h = self.norm2(h).relu()
        h = self.conv2(before if self.faulty else h)
        return self.shortcut(x) + h


class WideResNet(nn.Module):
    """Three groups of `depth` blocks; images (N, 3, 32, 32) to logits (N, 10)."""

    def __init__(self, *, faulty: bool, depth: int = 3, widen: int = 2) -> None:
        super().__init__()
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        blocks = []
        for group, (inside, outside) in enumerate(itertools.pairwise(widths)):
            for k in range(depth):
                stride = 2 if group and k == 0 else 1
                blocks.append(Block(outside if k else inside, outside, stride, faulty=faulty))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], 10)
        self.example_input_array = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.blocks(self.stem(image))
        return self.head(self.norm(x).relu().mean((2, 3)))


def build() -> nn.Module:
    """The model of the report."""
    torch.manual_seed(0)
    return WideResNet(faulty=True)


def build_fixed() -> nn.Module:
    """The same net, the second convolution behind the first."""
    torch.manual_seed(0)
    return WideResNet(faulty=False)
