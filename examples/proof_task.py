"""A 60-layer post-norm transformer that learns nothing, and what mends it: the four rows of a 12-second task.

Eight tokens are to be said in reverse order; guessing costs ln 8 = 2.079. 60 encoder layers (120 units) of width 32
with xavier-uniform weights, 150 steps of Adam at 1e-3 without warm-up, three seeds:

    python examples/proof_task.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import skipway

LAYERS, WIDTH, HEADS, HIDDEN, TOKENS = 60, 32, 4, 64, 8


class Attention(nn.Module):
    """Multi-head attention, (N, T, D) to (N, T, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens look at each other."""
        q, k, v = (w(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class PostNorm(nn.Module):
    """A unit: x' = LN( x + F(x) )."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch, self.norm = branch, nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm stands behind the sum."""
        return self.norm(x + self.branch(x))


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def feed_forward() -> nn.Module:
    return nn.Sequential(linear(WIDTH, HIDDEN), nn.ReLU(), linear(HIDDEN, WIDTH))


def build() -> nn.Module:
    """The trunk: (N, T, D) to (N, T, D)."""
    units = [PostNorm(branch) for _ in range(LAYERS) for branch in (Attention(), feed_forward())]
    trunk = nn.Sequential(*units)
    trunk.example_input_array = torch.randn(4, TOKENS, WIDTH)
    return trunk


def build_mlp() -> nn.Module:
    """Its twin without attention, which trains: no token can become like another."""
    trunk = nn.Sequential(*[PostNorm(feed_forward()) for _ in range(LAYERS)])
    trunk.example_input_array = torch.randn(4, TOKENS, WIDTH)
    return trunk


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build()
    inspection = skipway.inspect(model, model.example_input_array, name="60 post-norm layers")
    print(skipway.prove(inspection, "post-norm-deep", model=build, batch=model.example_input_array))
