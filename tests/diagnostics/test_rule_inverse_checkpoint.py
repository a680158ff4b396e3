"""Inverses of pairs and flows, and checkpoints of both kinds at every place of a net."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from skipway.diagnostics.inspect import inspect


class Pair(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.f, self.g = (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(rate)) for _ in range(2))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = a + self.f(b)
        return c, b + self.g(c)

    def inverse(self, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b = d - self.g(c)
        return c - self.f(b), b


class Pairs(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(8, 16), nn.ModuleList(Pair(rate) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.stem(x).chunk(2, -1)
        for block in self.blocks:
            a, b = block(a, b)
        return torch.cat([a, b], -1)


class Flow(nn.Module):
    """Gives the logarithm of its volume beside its output; the inverse takes the output alone."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.f, self.factor = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x.chunk(2, -1)
        return torch.cat([b, a + self.f(b)], -1), x.new_zeros(len(x))

    def inverse(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b, c = y.chunk(2, -1)
        return torch.cat([c - self.factor * self.f(b), b], -1), y.new_zeros(len(y))


class Flows(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Flow(factor if k == 2 else 1.0) for k in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x, _ = block(x)
        return x


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool, batch_norm: bool) -> None:
        super().__init__()
        norm = nn.BatchNorm2d(8) if batch_norm else nn.GroupNorm(2, 8)
        self.branch, self.reentrant = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), norm, nn.ReLU()), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpoint(self.branch, x, use_reentrant=self.reentrant)


def found(model: nn.Module, batch: torch.Tensor, rule: str) -> list[tuple[str, str, str]]:
    return [(f.severity, f.path, f.message) for f in inspect(model, batch).findings if f.rule == rule]


def test_inverse_of_a_pair_with_dropout_misses() -> None:
    torch.manual_seed(0)
    batch = torch.randn(6, 8)
    assert found(Pairs(0.0), batch, "reversible-inexact") == []
    ((severity, path, message),) = found(Pairs(0.1), batch, "reversible-inexact")
    assert (severity, path) == ("error", "blocks.0")
    assert message.endswith("×4")
    assert found(Pairs(0.1).eval(), batch, "reversible-inexact") == []


def test_inverse_of_a_flow_takes_its_output_without_the_volume() -> None:
    torch.manual_seed(0)
    batch = torch.randn(6, 8)
    assert found(Flows(1.0), batch, "reversible-inexact") == []
    ((severity, path, _),) = found(Flows(1.01), batch, "reversible-inexact")
    assert (severity, path) == ("error", "blocks.2")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("stem", ["trained", "frozen", "none"])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_checkpoints_of_both_kinds(reentrant: bool, stem: str, batch_norm: bool) -> None:
    torch.manual_seed(0)
    blocks = [Checkpointed(reentrant=reentrant, batch_norm=batch_norm) for _ in range(3)]
    if stem == "none":
        model, batch = nn.Sequential(*blocks, nn.Conv2d(8, 4, 1)), torch.randn(2, 8, 8, 8)
    else:
        conv = nn.Conv2d(3, 8, 3).requires_grad_(stem == "trained")
        model, batch = nn.Sequential(conv, *blocks), torch.randn(2, 3, 8, 8)
    texts = " ".join(message for _, _, message in found(model, batch, "checkpoint-side-effects"))
    assert ("12 parameters get no gradient" in texts) is (reentrant and stem != "trained")
    if not (reentrant and stem == "frozen"):  # nothing runs backward there
        assert ("BatchNorm counts" in texts) is (batch_norm and not (reentrant and stem == "none"))
    assert bool(texts) is (batch_norm or (reentrant and stem != "trained"))
