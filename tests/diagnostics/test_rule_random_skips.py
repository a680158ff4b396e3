"""What the rules on blocks that Python skips by chance count, and that they leave compiled models alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from skipway import inspect

SEEDS = range(8)


class Skipping(nn.Module):
    """Leaves out what it adds whenever Python's coin says so."""

    def __init__(self, coins: int) -> None:
        super().__init__()
        self.norm, self.linear, self.coins = nn.LayerNorm(8), nn.Linear(8, 8), coins

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.coins):
            if random.random() < 0.5:
                x = x + self.linear(self.norm(x))
        return x


def evidence(model: nn.Module) -> Any:
    (found,) = [f for f in inspect(model, torch.randn(4, 8)).findings if f.rule == "compile-unsafe-skip"]
    return found.evidence


@pytest.mark.parametrize("coins", [1, 2, 5])
def test_graphs_are_counted_as_the_coins_fall(coins: int) -> None:
    torch.manual_seed(0)
    chances = [random.Random(seed) for seed in SEEDS]
    fallen = {tuple(chance.random() < 0.5 for _ in range(coins)) for chance in chances}
    # Which of the coins say yes is no matter: the operations are those of the same module, as often as they run.
    assert evidence(Skipping(coins))["different_graphs"] == len({sum(coins) for coins in fallen})


def test_what_is_drawn_and_decides_nothing_gives_one_graph() -> None:
    class Drawing(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            random.random()
            return super().forward(x)  # type: ignore[no-any-return]

    numbers = evidence(Drawing(nn.Linear(8, 8), nn.ReLU()))
    assert (numbers["different_graphs"], numbers["varying_modules"], numbers["runs"]) == (1, 0, len(SEEDS))


@pytest.mark.exhaustive
def test_compiled_models_keep_their_graphs() -> None:
    """Asking the compiler how many graphs a model is (torch._dynamo.explain, torch.export) makes it forget them."""
    made: list[int] = []

    def count(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        made.append(len(graph.graph.nodes))
        return graph.forward

    theirs = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), backend=count)
    theirs(torch.randn(4, 8))
    inspect(Skipping(3), torch.randn(4, 8), profile="thorough")
    theirs(torch.randn(4, 8))
    assert len(made) == 1
