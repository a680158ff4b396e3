"""Lesions of models whose forward writes to their own parameters: every run sees the same weights.

Shapes: N samples, D width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import skipway

D = 6


class Unit(nn.Module):
    """x' = x + F(x), or F(x) alone."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        self.linear, self.plain = nn.Sequential(nn.Linear(D, D)), plain

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        return y if self.plain else x + y


class Renormalised(nn.Module):
    """Halves a weight before each run, in place or through ``.data``, which leaves no version behind."""

    def __init__(self, *, plain: bool, data: bool) -> None:
        super().__init__()
        self.units = nn.ModuleList(Unit(plain=plain) for _ in range(3))
        self.data = data

    def forward(self, x: Tensor) -> Tensor:
        weight = self.units[2].linear[0].weight
        with torch.no_grad():
            (weight.data if self.data else weight).mul_(0.5)
        for unit in self.units:
            x = unit(x)
        return x


def mean(output: Tensor) -> float:
    return float(output.double().square().mean())


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("plain", [False, True], ids=["units", "blocks"])
def test_each_run_has_the_same_weights(plain: bool, data: bool, mode: Any) -> None:
    torch.manual_seed(0)
    model, x = Renormalised(plain=plain, data=data), torch.randn(4, D)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = skipway.lesion(model, x, mean, blocks="auto" if plain else None, mode=mode)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    weights = [u.linear[0].weight.detach() for u in model.units]
    biases = [u.linear[0].bias.detach() for u in model.units]
    for k in (None, 0, 1, 2):
        h = x
        for i in (i for i in range(3) if i != k):
            y = torch.tanh(h @ ((0.5 if i == 2 else 1.0) * weights[i]).T + biases[i])
            h = y if plain else h + y
        value = found.baseline if k is None else found.each[f"units.{k}"].value
        assert value == pytest.approx(mean(h), rel=1e-5), k
