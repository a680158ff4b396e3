"""What the programs share: stems and heads around a list of units, branches, batches.

N batch, C channels, H height, W width, T tokens, D width of a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VOCABULARY = 50


def images(n: int = 2, size: int = 8, channels: int = 3) -> Callable[[], torch.Tensor]:
    """Noise of shape (N, C, H, W)."""
    return lambda: torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(1))


def ids(n: int = 2, length: int = 8) -> Callable[[], torch.Tensor]:
    """Token ids of shape (N, T)."""
    return lambda: torch.randint(0, VOCABULARY, (n, length), generator=torch.Generator().manual_seed(1))


def vectors(*shape: int) -> Callable[[], torch.Tensor]:
    """Noise of any shape."""
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(1))


class ConvNet(nn.Module):
    """Stem, units, end, head; (N, 3, H, W) to (N, 10)."""

    def __init__(self, units: Sequence[nn.Module], width: int = 16, end: nn.Module | None = None, out: int = 0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.units = nn.Sequential(*units)
        self.end = nn.Identity() if end is None else end
        self.head = nn.Linear(out or width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.end(self.units(self.stem(x))).mean((2, 3)))


class TokenNet(nn.Module):
    """Embedding with learned positions, units, final norm, head; ids (N, T) to (N, T, 50)."""

    def __init__(self, units: Sequence[nn.Module], width: int = 32, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(0.1 * torch.randn(64, width))
        self.layers = nn.ModuleList(units)
        self.norm = nn.LayerNorm(width) if norm is None else norm
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Attention(nn.Module):
    """Self-attention, (N, T, D) to (N, T, D)."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(n, t, d))


class Residual(nn.Module):
    """x + F(x)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x)


def mlp(width: int = 32, hidden: int = 0) -> nn.Sequential:
    """Linear, GELU, linear."""
    hidden = hidden or 2 * width
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def conv(inside: int, outside: int | None = None, stride: int = 1, *, bias: bool = False) -> nn.Conv2d:
    """A 3×3 convolution that keeps the size at stride 1."""
    return nn.Conv2d(inside, outside or inside, 3, stride, 1, bias=bias)


def conv_bn(width: int = 16, outside: int | None = None, stride: int = 1) -> nn.Sequential:
    """The branch of a post-activation block: conv, BN, ReLU, conv, BN."""
    outside = outside or width
    return nn.Sequential(
        conv(width, outside, stride), nn.BatchNorm2d(outside), nn.ReLU(), conv(outside), nn.BatchNorm2d(outside)
    )


def preact(width: int = 16) -> nn.Sequential:
    """The branch of a pre-activation block: BN, ReLU, conv, BN, ReLU, conv."""
    return nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), conv(width), nn.BatchNorm2d(width), nn.ReLU(), conv(width))


def bn_relu(width: int = 16) -> nn.Sequential:
    """What ends a pre-activation net."""
    return nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())


def prenorm(width: int = 32) -> list[nn.Module]:
    """The two units of one healthy pre-norm layer."""
    return [
        Residual(nn.Sequential(nn.LayerNorm(width), Attention(width))),
        Residual(nn.Sequential(nn.LayerNorm(width), mlp(width))),
    ]


def preact_net(depth: int = 6, width: int = 16) -> ConvNet:
    """A healthy pre-activation net."""
    return ConvNet([Residual(preact(width)) for _ in range(depth)], width, end=bn_relu(width))


def prenorm_net(layers: int = 4, width: int = 32) -> TokenNet:
    """A healthy pre-norm transformer."""
    return TokenNet([u for _ in range(layers) for u in prenorm(width)], width)
