"""Equations of spellings that are easily misread: nested, interpolated, gated, fused, detached, very large."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipway.diagnostics.inspect import inspect
from skipway.units.prove import BOUND_EPS

if TYPE_CHECKING:
    from collections.abc import Callable

D = 12
LAYERS = 2


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))


class Net(nn.Module):
    """A stem and two layers, each spelled by a function of the net, the stream and the layer's number."""

    def __init__(self, layer: Callable[[Net, torch.Tensor, int], torch.Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self.branch = nn.ModuleList(mlp() for _ in range(2 * LAYERS))
        self.gate = nn.ModuleList(nn.Linear(D, D) for _ in range(LAYERS))
        self.scale = nn.Parameter(torch.full((D,), 0.3))
        self.matrix = nn.Parameter(torch.randn(D, D))
        self.stem = nn.Linear(D, D)
        self.own = torch.Generator().manual_seed(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for k in range(LAYERS):
            x = self.layer(self, x, k)
        return x


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def nested(net: Net, x: torch.Tensor, k: int) -> torch.Tensor:
    y = x
    y = y + net.branch[0](y)
    y = y + net.branch[1](y)
    return x + 0.2 * y


def long_lerp(net: Net, x: torch.Tensor, k: int) -> torch.Tensor:
    new, keep = torch.tanh(net.branch[k](x)), torch.sigmoid(net.gate[k](x))
    return new + keep * (x - new)


def gate_on_branch(net: Net, x: torch.Tensor, k: int) -> torch.Tensor:
    y = torch.relu(net.branch[k](x))
    z = torch.sigmoid(net.gate[k](y))
    return (1 - z) * x + z * y


def logged(net: Net, x: torch.Tensor, k: int) -> torch.Tensor:
    x.detach().norm()
    return x + net.branch[k](x)


F_X = "Linear·GELU·Linear"
SPELLINGS: dict[str, tuple[Callable[[Net, torch.Tensor, int], torch.Tensor], str]] = {
    "units inside the branch": (nested, f"x' = x + 0.2·{F_X}·{F_X}(x)"),
    "x + a(F - x)": (lambda n, x, k: x + 0.3 * (n.branch[k](x) - x), f"x' = 0.7·x + 0.3·{F_X}(x)"),
    "x + g(F - x)": (
        lambda n, x, k: x + torch.sigmoid(n.gate[k](x)) * (n.branch[k](x) - x), f"x' = (1-g)·x + g·{F_X}(x)",
    ),
    "x + λ(F - x)": (lambda n, x, k: x + n.scale * (n.branch[k](x) - x), f"x' = λ·x + λ·{F_X}(x)"),
    "F + g(x - F)": (long_lerp, f"x' = g·x + (1-g)·Tanh·{F_X}(x)"),
    "gate computed from the branch": (gate_on_branch, f"x' = (1-g)·x + g·ReLU·{F_X}(x)"),
    "RMS norm after a subtraction": (
        lambda n, x, k: x - n.branch[k](rms_norm(x)), f"x' = x + -1.0·{F_X}·RMSNorm(x)",
    ),
    "addcmul, scale first": (lambda n, x, k: torch.addcmul(x, n.scale, n.branch[k](x)), f"x' = x + λ·{F_X}(x)"),
    "addcmul, scale last": (lambda n, x, k: torch.addcmul(x, n.branch[k](x), n.scale), f"x' = x + λ·{F_X}(x)"),
    "addcdiv": (lambda n, x, k: torch.addcdiv(x, n.branch[k](x), n.scale), f"x' = x + λ·{F_X}(x)"),
    "weights by einsum": (lambda n, x, k: x + torch.einsum("btd,de->bte", x, n.matrix), "x' = x + Linear(x)"),
    "factors of one": (lambda n, x, k: (x + n.branch[k](x).mul(1.0)) * 1.0, f"x' = x + {F_X}(x)"),
    "x read in passing": (logged, f"x' = x + {F_X}(x)"),
    "gated branch": (lambda n, x, k: x + torch.tanh(n.gate[k](x)) * n.branch[k](x), f"x' = x + {F_X}(x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_equation(name: str) -> None:
    torch.manual_seed(0)
    layer, equation = SPELLINGS[name]
    found = inspect(Net(layer), torch.randn(2, 5, D))
    units = [u for u in found.units if u.level == 0]
    assert [str(u.form) for u in units] == [equation] * LAYERS
    assert all(u.proof_error is not None and u.proof_error <= BOUND_EPS for u in found.units)
    assert all(u.numbers.grad_stream is not None for u in found.units)
    assert found.unexplained == []


def test_a_recurrent_cell_is_a_gated_unit_per_step() -> None:
    found = inspect(nn.GRU(D, D, batch_first=True), torch.randn(2, 4, D))
    assert {str(u.form) for u in found.units} == {"x' = g·x + (1-g)·Tanh·g·Linear(x)"}
    assert {u.form.canonical().merge for u in found.units} == {"lerp"}
    assert len(found.units) in (3, 4)  # the first step starts from zeros


def test_a_recurrent_layer_is_named() -> None:
    net = Net(lambda n, x, k: x + n.recurrent[k](x)[0])
    net.recurrent = nn.ModuleList(nn.LSTM(D, D, batch_first=True) for _ in range(LAYERS))
    assert {str(u.form) for u in inspect(net, torch.randn(2, 5, D)).units} == {"x' = x + weight[lstm](x)"}


def test_means_of_sums_over_several_dimensions_are_no_mixing() -> None:
    net = Net(lambda n, x, k: x + n.branch[k](x) * x.square().sum((1, 2), keepdim=True).mean((0,), keepdim=True))
    found = inspect(net, torch.randn(2, 5, D))
    assert len(found.units) == LAYERS
    assert found.unexplained == []


def test_a_shifted_stream_is_no_identity() -> None:
    assert inspect(Net(lambda n, x, k: x.roll(1, 1) + n.branch[k](x)), torch.randn(2, 5, D)).units == []


def test_a_very_large_stream_is_finite_all_the_same() -> None:
    net = Net(lambda n, x, k: 1e19 * (x / 1e19 + torch.tanh(n.branch[k](x / 1e19))))
    with torch.no_grad():
        net.stem.weight.mul_(1e19)
    found = inspect(net, torch.randn(2, 5, D))
    assert found.findings == []
    for unit in found.units:
        assert unit.numbers.cosine is not None
        assert abs(unit.numbers.cosine) <= 1


@pytest.mark.parametrize("p", [0.1, 0.3])
def test_dropout_prints_the_probability_that_was_written(p: float) -> None:
    net = Net(lambda n, x, k: F.dropout(x, p, training=True) + n.branch[k](x))
    assert [u.form.shortcut[0].detail for u in inspect(net, torch.randn(2, 5, D)).units] == [p] * LAYERS


def test_the_models_own_generator_is_put_back() -> None:
    net = Net(lambda n, x, k: x + n.branch[k](x) * torch.rand(D, generator=n.own))
    before = net.own.get_state()
    inspect(net, torch.randn(2, 5, D))
    assert torch.equal(net.own.get_state(), before)


def test_inference_mode_around_an_inspection_does_no_harm() -> None:
    net = Net(lambda n, x, k: x + n.branch[k](x))
    with torch.inference_mode():
        found = inspect(net, torch.randn(2, 5, D))
    assert len(found.units) == LAYERS
