"""A vector-quantising autoencoder whose residual blocks rewrite their own input: a real report, rebuilt.

The report: https://github.com/rosinality/vq-vae-2-pytorch/issues/60. The residual block begins with
``nn.ReLU(inplace=True)``, and only after its branch has run does it add its input. By then the input is no longer the
input: the ReLU has written over it, so the block computes relu(x) + F(x) where x + F(x) was meant.

What the user saw: nothing. No error is raised, training looks normal and reconstructions are fair; somebody reading the
code noticed it. Convict it with one command:

    skipway inspect examples/vqvae_inplace_relu.py:build

and compare with the mended model, ``examples/vqvae_inplace_relu.py:build_fixed``.

N batch, C channels, H height, W width, K codes.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class ResBlock(nn.Module):
    """The block of the report: ReLU, 3×3, ReLU, 1×1, and a shortcut; (N, C, H, W) kept."""

    def __init__(self, channels: int, hidden: int, *, inplace: bool) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.ReLU(inplace=inplace),
            nn.Conv2d(channels, hidden, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The shortcut is read last, when the branch has run."""
        out = self.branch(x)
        out += x
        return out


class Quantiser(nn.Module):
    """The nearest of K codes for each place, straight through for the gradient."""

    def __init__(self, width: int, codes: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(codes, width))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Codes in place of values."""
        flat = z.movedim(1, -1)
        distance = flat.square().sum(-1, keepdim=True) - 2 * flat @ self.codes.T + self.codes.square().sum(-1)
        nearest = F.embedding(distance.argmin(-1), self.codes).movedim(-1, 1)
        return z + (nearest - z).detach()


class Autoencoder(nn.Module):
    """Encoder, quantiser and decoder of one level; images (N, 3, H, W) to the same."""

    def __init__(
        self, *, inplace: bool, channels: int = 64, hidden: int = 32, width: int = 32, codes: int = 128
    ) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, channels // 2, 4, 2, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels // 2, channels, 4, 2, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
            ResBlock(channels, hidden, inplace=inplace),
            ResBlock(channels, hidden, inplace=inplace),
            nn.ReLU(inplace=True),
        )
        self.to_code = nn.Conv2d(channels, width, 1)
        self.quantiser = Quantiser(width, codes)
        self.decoder = nn.Sequential(
            nn.Conv2d(width, channels, 3, padding=1),
            ResBlock(channels, hidden, inplace=inplace),
            ResBlock(channels, hidden, inplace=inplace),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(channels // 2, 3, 4, 2, 1),
        )
        self.example_input_array = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The image rebuilt."""
        return self.decoder(self.quantiser(self.to_code(self.encoder(image))))


def build() -> nn.Module:
    """The model of the report."""
    torch.manual_seed(0)
    return Autoencoder(inplace=True)


def build_fixed() -> nn.Module:
    """The same model, the leading ReLU out of place."""
    torch.manual_seed(0)
    return Autoencoder(inplace=False)
