"""Transformers of 6 and 60 layers for the reversal task: the nets that tell norm placements apart in seconds.

Two units a layer, attention and feed-forward, of width 32 with 4 heads, xavier-uniform weights and zero biases, as in
the original Transformer (arXiv 1706.03762) and PyTorch's own; with another initialisation, GPT-2's say, the placements
hardly differ. Read by name: ``skipway.study.deep_transformer:post_norm_60``.

Shapes: N sequences, T = 8 tokens, D = 32 width.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipway.models import Stack

__all__ = [
    "DeepTransformer", "post_norm_6", "post_norm_60", "pre_norm_6", "pre_norm_60", "pre_norm_zero_60",
]  # fmt: skip

WIDTH: Final = 32
HEADS: Final = 4
HIDDEN: Final = 64
TOKENS: Final = 8


class Attention(nn.Module):
    """Multi-head attention of every token to every token, (N,T,D) to (N,T,D)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (_linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(N,T,D) to (N,T,D)."""
        q, k, v = (w(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.query, self.key, self.value))
        out: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class DeepTransformer(nn.Module):
    """Token and position embedding, a stack of units of one design, and a head.

    Args:
        layers: of two units each.
        design: of the stack.
    """

    def __init__(self, layers: int, design: str) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        branches = [branch for _ in range(layers) for branch in (Attention(), _feed_forward())]
        self.stack = Stack(branches, design)
        self.head = nn.Linear(WIDTH, TOKENS)
        self.example_input_array = torch.zeros(2, TOKENS, dtype=torch.int64)

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens (N,T) to the logits of the token that belongs there, (N,T,8)."""
        out: Tensor = self.head(self.stack(self.token(ids) + self.position.weight))
        return out


def post_norm_60() -> nn.Module:
    """60 layers, the norm behind the sum."""
    return DeepTransformer(60, "post_norm")


def pre_norm_60() -> nn.Module:
    """60 layers, the norm at the start of the branch."""
    return DeepTransformer(60, "pre_norm")


def pre_norm_zero_60() -> nn.Module:
    """As `pre_norm_60`, with branches that end in zeros."""
    return DeepTransformer(60, "pre_norm(zero_init=true)")


def post_norm_6() -> nn.Module:
    """6 layers, the norm behind the sum."""
    return DeepTransformer(6, "post_norm")


def pre_norm_6() -> nn.Module:
    """6 layers, the norm at the start of the branch."""
    return DeepTransformer(6, "pre_norm")


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _feed_forward() -> nn.Module:
    return nn.Sequential(_linear(WIDTH, HIDDEN), nn.ReLU(), _linear(HIDDEN, WIDTH))
