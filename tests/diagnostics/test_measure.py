"""Measured numbers against values that autograd and arithmetic give by hand, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skipway.diagnostics.inspect import inspect
from skipway.diagnostics.measure import projection_loss
from skipway.diagnostics.taps import similarity

N, T, D, L = 3, 5, 8, 4


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


class Block(nn.Module):
    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.branch, self.spelling = Branch(), spelling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.spelling == "in-place":
            y = self.branch(x)
            y += x
            return y
        if self.spelling == "checkpoint":
            return checkpoint(lambda z: z + self.branch(z), x, use_reentrant=False)
        return x + self.branch(x)


class Net(nn.Module):
    def __init__(self, spelling: str = "plain") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(D, D)
        self.blocks = nn.ModuleList(Block(spelling) for _ in range(L))
        self.head = nn.Linear(D, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def by_hand(net: Net, batch: torch.Tensor) -> list[dict[str, float]]:
    """The same numbers from tensors that are kept, with `retain_grad`."""
    x = net.stem(batch)
    rows = []
    for block in net.blocks:
        branch = block.branch(x)
        y = x + branch
        for tensor in (x, branch):
            tensor.retain_grad()
        rows.append((x, branch, y))
        x = y
    projection_loss(net.head(x)).backward()

    def rms(t: torch.Tensor) -> float:
        return float(t.detach().square().mean().sqrt())

    found = []
    for x, branch, y in rows:
        tokens = F.normalize(y.detach(), dim=-1)
        cosines = tokens @ tokens.mT
        off_diagonal = (cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(1)) / (T * (T - 1))
        found.append(
            {
                "stream_rms": rms(x),
                "branch_rms": rms(branch),
                "shortcut_rms": rms(x),
                "cosine": float(F.cosine_similarity(x.detach().flatten(), branch.detach().flatten(), dim=0)),
                "out_rms": rms(y),
                "grad_stream": float(x.grad.norm()),
                "grad_branch": float(branch.grad.norm()),
                "similarity": float(off_diagonal.mean()),
            }
        )
    return found


@pytest.mark.parametrize("spelling", ["plain", "in-place", "checkpoint"])
def test_numbers_are_those_found_by_hand(spelling: str) -> None:
    batch = torch.randn(N, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = by_hand(Net().double(), batch)
    found = inspect(Net(spelling).double(), batch)
    assert len(found.units) == L
    for unit, numbers in zip(found.units, expected, strict=True):
        assert unit.numbers.to_dict() == pytest.approx(numbers, rel=1e-5)


def test_gradient_agrees_with_finite_differences() -> None:
    """The directional derivative of the loss along a change of the first stream."""
    net = Net().double()
    batch = torch.randn(N, T, D, dtype=torch.float64)
    measured = inspect(net, batch).units[0].numbers.grad_stream
    assert measured is not None
    stream = net.stem(batch).detach()

    def loss(x: torch.Tensor) -> float:
        for block in net.blocks:
            x = block(x)
        return float(projection_loss(net.head(x)).detach())

    step, squares = 1e-5, 0.0
    for i in range(stream.numel()):
        change = torch.zeros_like(stream).flatten()
        change[i] = step
        change = change.view_as(stream)
        squares += ((loss(stream + change) - loss(stream - change)) / (2 * step)) ** 2
    assert measured == pytest.approx(math.sqrt(squares), rel=1e-5)


def test_default_loss_is_not_constant_behind_a_layer_norm() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    norm = nn.LayerNorm(6, eps=1e-12).double()
    (useful,) = torch.autograd.grad(projection_loss(norm(x)), x)
    (useless,) = torch.autograd.grad(norm(x).square().sum(), x)
    assert float(useful.norm()) > 0.1
    assert float(useless.norm()) < 1e-4


def test_similarity_is_the_mean_cosine_of_pairs() -> None:
    x = torch.randn(2, 3, 4, 5)
    rows = x.flatten(2)
    pairs = [
        float(F.cosine_similarity(rows[n, a], rows[n, b], dim=0))
        for n in range(2) for a in range(3) for b in range(3) if a != b
    ]  # fmt: skip
    assert float(similarity(x)) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    assert similarity(torch.randn(4, 7)) is None


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1])
def test_slope_of_a_scaled_shortcut_is_its_logarithm(factor: float) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(D, D)
            self.branches = nn.ModuleList(Branch() for _ in range(8))
            for branch in self.branches:
                nn.init.zeros_(branch.down.weight)
                nn.init.zeros_(branch.down.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for branch in self.branches:
                x = factor * x + branch(x)
            return x

    found = inspect(Scaled().double(), torch.randn(N, T, D, dtype=torch.float64))
    assert [u.form.shortcut[0].detail for u in found.units] == [factor] * 8
    assert found.slopes["stream_rms"] == pytest.approx(math.log(factor), abs=1e-6)
    assert found.slopes["grad_stream"] == pytest.approx(math.log(factor), abs=1e-6)


def test_frozen_parameters_are_measured_through_the_input() -> None:
    net = Net().double()
    batch = torch.randn(N, T, D, dtype=torch.float64)
    trainable = inspect(net, batch)
    net.requires_grad_(False)
    frozen = inspect(net, batch)
    assert [u.numbers.grad_stream for u in frozen.units] == pytest.approx(
        [u.numbers.grad_stream for u in trainable.units], rel=1e-6
    )


def test_no_gradient_says_that_only_the_forward_half_was_measured() -> None:
    class NoGrad(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return super().forward(x)

    found = inspect(NoGrad(), torch.randn(N, T, D))
    assert found.units[0].numbers.stream_rms is not None
    assert found.units[0].numbers.grad_stream is None
    assert any("only the forward half was measured" in note for note in found.notes)


def test_integer_output_says_that_only_the_forward_half_was_measured() -> None:
    class Classes(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).argmax(-1)

    found = inspect(Classes(), torch.randn(N, T, D))
    assert len(found.units) == L
    assert any("no floating output" in note for note in found.notes)


def test_parallel_branches_are_measured_as_their_sum() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = nn.Linear(D, D), Branch(), Branch()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            return x + self.a(x) + self.b(x)

    net = Parallel().double()
    batch = torch.randn(N, T, D, dtype=torch.float64)
    (unit,) = inspect(net, batch).units
    x = net.stem(batch)
    assert unit.numbers.branch_rms == pytest.approx(
        float((net.a(x) + net.b(x)).detach().square().mean().sqrt()), rel=1e-6
    )
    assert unit.form.parallel
