"""Templates of the tiny programs that rules show and are tested on."""

from __future__ import annotations

__all__ = ["CONV", "TOKENS", "program"]

# Stacks of blocks on tokens and on images; {layers}, {unit} and {rest} are what a rule fills in.
TOKENS = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        {layers}

    def branch(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x):
        {unit}


model = nn.Sequential(nn.Linear(16, 16), *[Block() for _ in range({depth})], {rest})
batch = torch.randn(4, 6, 16)
"""
CONV = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        {layers}

    def forward(self, x):
        {unit}


model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *[Block() for _ in range({depth})], {rest})
batch = torch.randn(4, 3, 8, 8)
"""


def program(template: str, *, unit: str, depth: int, layers: str = "", rest: str = "nn.Identity()") -> str:
    """A program: several statements of a forward are divided by ``;``."""
    statements = "\n        ".join(s.strip() for s in unit.split(";"))
    text = template.format(unit=statements, depth=depth, layers=layers, rest=rest)
    return "\n".join(line.rstrip() for line in text.split("\n"))
