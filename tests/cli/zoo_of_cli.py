"""Small models for the tests of the command line, healthy and faulty; named as ``zoo_of_cli.py:Factory``."""

# Shapes: N batch, D width, T tokens.
from __future__ import annotations

import torch
from torch import Tensor, nn

READY = nn.Linear(2, 2)
NUMBER = 3


class Block(nn.Module):
    """x + W₂ ReLU(W₁ LN(x))."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Healthy(nn.Module):
    """Three pre-norm units."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.head(self.norm(self.blocks(x))) * scale


class Plain(nn.Module):
    """No unit at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Tokens(nn.Module):
    """Integers in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.net = nn.Embedding(32, 8), Healthy()

    def forward(self, ids: Tensor) -> Tensor:
        return self.net(self.embed(ids))


class MakesNaN(Healthy):
    """The second block divides nothing by nothing."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = self.blocks[0](x)
        x = x + self.blocks[1].down(x * 0 / (x * 0))
        return self.head(self.blocks[2](x))


class ArgMax(Healthy):
    """No floating output."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x).argmax(-1)


class Detached(Healthy):
    """An output that needs no gradient."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x).detach()


class Grows(Healthy):
    """Adds a layer to itself in every forward."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.blocks.append(Block())
        return super().forward(x)


class WritesItself(Healthy):
    """Halves a parameter in every forward."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        with torch.no_grad():
            self.head.weight.mul_(0.5)
        return super().forward(x)


class Talks(Healthy):
    """Prints in forward."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        print("here I am")
        return super().forward(x)


class Interrupted(Healthy):
    """Somebody presses Ctrl-C in the middle."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = self.blocks[0](x)
        raise KeyboardInterrupt


class Crashes(Healthy):
    """An error of its own."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return helper_that_crashes(self.blocks(x))


def helper_that_crashes(x: Tensor) -> Tensor:
    raise RuntimeError("the user's own words")


def loss(output: Tensor) -> Tensor:
    return output.square().mean()


def wrong_loss(output: Tensor) -> Tensor:
    return output.no_such_method()
