"""Stacks of one unit, given as a function of a block and its input, on tokens and on images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

D, C = 16, 8

Forward = Callable[[Any, torch.Tensor], torch.Tensor]


class TokenBlock(nn.Module):
    """Layers for units on (N, T, D)."""

    def __init__(self, forward: Forward | None) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.l1, self.l2, self.l3, self.l4 = nn.Linear(D, 32), nn.Linear(32, D), nn.Linear(D, 32), nn.Linear(32, D)
        self.p, self.g = nn.Linear(D, D), nn.Linear(D, D)
        self.written = forward
        self.register_buffer("factor", torch.tensor(0.7))

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.l2(F.gelu(self.l1(x)))

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.l4(F.gelu(self.l3(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.written is not None
        return self.written(self, x)


class ConvBlock(nn.Module):
    """Layers for units on (N, C, H, W)."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.c1, self.c2 = (nn.Conv2d(C, C, 3, padding=1, bias=False) for _ in range(2))
        self.n1, self.n2 = nn.BatchNorm2d(C), nn.BatchNorm2d(C)
        self.p = nn.Conv2d(C, C, 1)
        self.written = forward

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        return self.n2(self.c2(F.relu(self.n1(self.c1(x)))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.written(self, x)


class Stack(nn.Module):
    """Stem, blocks, an end, head; with `inline` the root's own forward runs what a block would."""

    def __init__(
        self, stem: nn.Module, blocks: list[nn.Module], end: nn.Module, head: nn.Module, inline: Forward | None
    ) -> None:
        super().__init__()
        self.stem, self.blocks, self.end, self.head = stem, nn.ModuleList(blocks), end, head
        self.inline = inline

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.inline is None else self.inline(block, x)
        return self.head(self.end(x))


def tokens(
    *forwards: Forward, depth: int = 6, normed: bool = True, inline: Forward | None = None
) -> tuple[nn.Module, torch.Tensor]:
    """Blocks on tokens whose forwards alternate, with a norm behind the last or none, and a batch."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = [TokenBlock(forwards[k % len(forwards)] if forwards else None) for k in range(depth)]
    end = nn.LayerNorm(D) if normed else nn.Identity()
    return Stack(nn.Linear(D, D), blocks, end, nn.Linear(D, 4), inline), torch.randn(4, 6, D)


def images(forward: Forward, depth: int = 6, end: nn.Module | None = None) -> tuple[nn.Module, torch.Tensor]:
    """Blocks on images, and a batch."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(C, 4))
    stem = nn.Conv2d(3, C, 3, padding=1)
    blocks: list[nn.Module] = [ConvBlock(forward) for _ in range(depth)]
    return Stack(stem, blocks, end or nn.Identity(), head, None), torch.randn(4, 3, 8, 8)


def rms(x: torch.Tensor) -> torch.Tensor:
    """RMSNorm written by hand."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def highway(gate: Callable[[torch.Tensor], torch.Tensor]) -> Forward:
    """t·F(x) + (1 − t)·x."""

    def forward(block: Any, x: torch.Tensor) -> torch.Tensor:
        t = gate(block.g(x))
        return t * block.mlp(x) + (1 - t) * x

    return forward
