"""What a report says of parameters that do not train, and of those that have no part in the output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from faults.nets import ids, prenorm_net
from skipway.diagnostics.inspect import inspect


class TwoHeads(nn.Module):
    """A net whose second head, and the gain of whose unused norm, nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.net = prenorm_net(2)
        self.heads = nn.ModuleDict({"second": nn.Sequential(nn.Linear(50, 4), nn.Linear(4, 2))})
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.net(tokens)


def notes(model: nn.Module) -> list[str]:
    return [n for n in inspect(model, ids()()).notes if "need a gradient" in n or "need no gradient" in n]


def test_parameters_without_a_part_are_named_by_the_largest_module() -> None:
    model = TwoHeads()
    numbers = 3 + sum(p.numel() for p in model.heads.parameters())
    output = model(ids()())
    output.square().mean().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None]
    assert len(without) == 5
    everything = len(list(model.parameters()))
    (note,) = notes(model)
    counted, _, where = note.partition(" have no part in this output: ")
    assert counted == f"5 of {everything} parameters that need a gradient ({numbers} weights)"
    assert where == "gain, heads; DistributedDataParallel wants find_unused_parameters=True"


@pytest.mark.parametrize("units", [[0], [0, 2, 3, 1]])
def test_frozen_units_among_others_are_counted(units: list[int]) -> None:
    model = prenorm_net(4)
    for k in units:
        model.layers[k].requires_grad_(False)
    shown = ["layers.0", "layers.0, layers.1, layers.2 and 1 more"][len(units) > 1]
    assert notes(model) == [
        f"{len(units)} of 8 units are frozen, their parameters need no gradient: {shown}",
    ]


def test_nothing_is_said_of_models_that_train_or_are_frozen_as_a_whole() -> None:
    model = prenorm_net(2)
    assert notes(model) == []
    model.head.weight = model.embed.weight  # tied: both names are one parameter
    assert notes(model) == []
    model.requires_grad_(False)
    assert notes(model) == []


class Elsewhere:
    """Holds a block, and is no module."""

    def __init__(self) -> None:
        self.block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))


class Borrows(nn.Module):
    def __init__(self, held: Elsewhere, *, by_closure: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        if by_closure:
            self.elsewhere = lambda: held
        else:
            self.held = held
            self.elsewhere = lambda: self.held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return x + self.elsewhere().block(x)


@pytest.mark.parametrize("by_closure", [False, True])
def test_what_others_hold_is_told_without_a_place_and_put_back_unless_a_closure_hides_it(by_closure: bool) -> None:
    held = Elsewhere()
    model = Borrows(held, by_closure=by_closure)
    (finding,) = [f for f in inspect(model, torch.randn(4, 8)).findings if f.rule == "unregistered-weights"]
    assert finding.severity == "warning"
    assert finding.message.startswith("held outside of the model, 4 tensors of 88 weights take part")
    assert bool(held.block[1].num_batches_tracked) == by_closure
