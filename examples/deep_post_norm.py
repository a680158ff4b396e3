"""A deep post-norm transformer that does not train: a real report, rebuilt.

The report: https://github.com/pytorch/pytorch/issues/55270. ``nn.TransformerEncoder`` puts its norms after the add
unless told otherwise. A few layers train; the report finds training unstable from about twelve layers on.

What the user saw: deeper models of this module fail where other implementations train. This one has 60 layers.
Attention averages, the norm after each add hands that average on at full size, and after 120 such units all tokens have
become one. Convict it with one command:

    skipway inspect examples/deep_post_norm.py:build

and compare with the mended model, ``examples/deep_post_norm.py:build_fixed``: the norms stand in the branches, a last
one before the head, and each branch ends in a layer that starts at zero.

N batch, T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import nn

VOCABULARY = 16


class Reverser(nn.Module):
    """Reads T tokens and is to say them backwards; ids (N, T) to logits (N, T, 16)."""

    def __init__(self, *, norm_first: bool, layers: int = 60, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        final = nn.LayerNorm(width) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, layers, norm=final, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        for parameter in self.encoder.parameters():  # its layers start as copies of one
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        self.example_input_array = torch.randint(0, VOCABULARY, (8, 8), generator=torch.Generator().manual_seed(0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits for each place."""
        return self.head(self.encoder(self.embed(ids) + self.position))


def build() -> nn.Module:
    """The model of the report: 60 layers as `nn.TransformerEncoder` makes them by default."""
    torch.manual_seed(0)
    return Reverser(norm_first=False)


def build_fixed() -> nn.Module:
    """Pre-norm, and every branch starts at zero."""
    torch.manual_seed(0)
    model = Reverser(norm_first=True)
    for layer in model.encoder.layers:
        nn.init.zeros_(layer.self_attn.out_proj.weight)
        nn.init.zeros_(layer.linear2.weight)
        nn.init.zeros_(layer.linear2.bias)
    return model
