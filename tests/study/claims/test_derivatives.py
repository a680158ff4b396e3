"""Claims on derivatives of units: each measurement against other arithmetic, and on a unit that breaks the claim."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from skipway.models import Stack, Unit, create_model
from skipway.study.claims import (
    clean_path,
    grad_40_tanh,
    grad_example,
    grad_sum,
    lower_bound,
    not_minus_one,
    product_derivative,
)
from skipway.study.claims._measures import gradient_ratios, passes, smooth_branch


def linear(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape[::-1], bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def differences(function, x: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    """The Jacobian by central differences, a column for each entry of x."""
    columns = []
    with torch.no_grad():
        for k in range(x.numel()):
            shift = torch.zeros(x.numel(), dtype=x.dtype)
            shift[k] = step
            there, back = (function(x + sign * shift.reshape(x.shape)).flatten() for sign in (1, -1))
            columns.append((there - back) / (2 * step))
    return torch.stack(columns, dim=1)


class TestGradSum:
    def test_by_differences(self) -> None:
        torch.manual_seed(0)
        unit, x = Unit(smooth_branch(4), "pre_norm").double(), torch.randn(2, 4).double()
        by_hand = differences(unit, x) - differences(unit.branches[0], x)
        assert (by_hand - torch.eye(8)).abs().max() < 1e-7
        assert (grad_sum.leftover(unit, x) - by_hand).abs().max() < 1e-7

    def test_a_relu_behind_the_sum_breaks_it(self) -> None:
        torch.manual_seed(0)
        unit = Unit(smooth_branch(4), "post_act", act="relu")
        assert grad_sum.judged({"twin": grad_sum.distance(unit, torch.randn(4, 4).double())}, 0).verdict == (
            "does not hold"
        )

    def test_a_scale_on_the_shortcut_breaks_it(self) -> None:
        unit = Unit(linear(torch.ones(3, 3)), "scaled(lam=0.999999,mu=1.0)", act="none")
        found = grad_sum.distance(unit, torch.ones(1, 3).double())
        assert abs(found - 1e-6) < 1e-12
        assert grad_sum.judged({"twin": found}, 0).verdict == "does not hold"


class TestGradExample:
    def test_the_arithmetic(self) -> None:
        assert abs(grad_example.gradient("plain") - 0.001 * 0.01) < 1e-18
        assert abs(grad_example.gradient("post_act") - 0.001 * (1 + 0.01)) < 1e-18

    def test_another_slope_has_other_figures(self) -> None:
        pair = [grad_example.gradient(design, 0.0101) for design in ("plain", "post_act")]
        assert grad_example.judged(*pair).verdict == "does not hold"

    def test_the_plain_one_twice(self) -> None:
        assert grad_example.judged(1e-5, 1e-5).verdict == "does not hold"


def printed_program(residual: bool, depth: int = 40, d: int = 64) -> float:
    """As document 001 prints it."""
    layers = nn.ModuleList([nn.Sequential(nn.Linear(d, d), nn.Tanh()) for _ in range(depth)])
    x = torch.randn(8, d, requires_grad=True)
    h = x
    for layer in layers:
        h = h + layer(h) if residual else layer(h)
    h.sum().backward()
    assert x.grad is not None
    return float(x.grad.norm())


class TestFortyTanhLayers:
    def test_the_printed_program(self) -> None:
        torch.manual_seed(0)
        expected = printed_program(False), printed_program(True)
        assert grad_40_tanh.pair(0) == expected
        # Found once by itself, with torch 2.14.1.
        assert np.allclose(expected, (9.2e-10, 1.75e02), rtol=0.01)

    def test_printed_figures_would_hold(self) -> None:
        judgement = grad_40_tanh.judged([(1.42e-06, 2.58e01)] * 20)
        assert judgement.verdict == "holds"

    def test_a_dead_residual_gradient_is_said(self) -> None:
        judgement = grad_40_tanh.judged([(1.4e-06, 2.6e01), (1e-9, 1e-8)])
        assert judgement.verdict == "does not hold"
        assert not judgement.numbers["plain_dies_and_residual_arrives"]

    def test_a_shallow_net_does_not_die(self) -> None:
        assert not grad_40_tanh.judged([grad_40_tanh.pair(0, depth=2)]).numbers["plain_dies_and_residual_arrives"]


class TestProductDerivative:
    def test_where_the_branch_is_zero_the_document_is_right(self) -> None:
        weight = torch.tensor([[1.0, -1.0], [2.0, -2.0]])
        unit = Unit(linear(weight), "multiply(plus_one=false)", act="none")
        found = product_derivative.distances(unit, torch.tensor([[3.0, 3.0]]).double())
        assert product_derivative.judged(found).verdict == "holds"

    def test_by_differences(self) -> None:
        torch.manual_seed(0)
        unit, x = Unit(smooth_branch(3), "multiply(plus_one=false)", act="none"), torch.randn(1, 3).double()
        whole, f = differences(unit, x), unit.branches[0](x).flatten().detach()
        document = torch.diag(x.flatten()) @ differences(unit.branches[0], x)
        expected = float((whole - document).abs().max() / whole.abs().max())
        found = product_derivative.distances(unit, x)
        assert abs(found["document"] - expected) < 1e-6
        assert (whole - document - torch.diag(f)).abs().max() < 1e-7


class TestNotMinusOne:
    def test_of_linear_units_by_their_matrices(self) -> None:
        torch.manual_seed(0)
        weights = [torch.randn(3, 3).double() * 0.3 for _ in range(4)]
        stack = Stack([linear(w) for w in weights], "post_act", act="none")
        x, back = torch.randn(2, 3).double(), torch.Generator().manual_seed(0)
        g = torch.randn(2, 3, generator=back, dtype=torch.float64)
        expected, behind = [], g.norm()
        for w in reversed(weights):
            g = g @ (torch.eye(3) + w)
            expected.insert(0, float(g.norm() / behind))
        assert np.allclose(gradient_ratios(stack, x), expected, rtol=1e-12)

    def test_units_that_cancel(self) -> None:
        assert gradient_ratios(not_minus_one.cancelling(), torch.randn(4, 8).double()) == [0.0, 0.0, 0.0]

    def test_a_plain_net_vanishes(self) -> None:
        torch.manual_seed(0)
        found = gradient_ratios(create_model("mlp20@plain").double(), torch.randn(4, 64).double())
        assert not_minus_one.judged({"plain": found}, 1.0).verdict == "does not hold"

    def test_verdicts(self) -> None:
        assert not_minus_one.judged({"net": [0.5, 2.0]}, 0.0).verdict == "holds only if"
        assert not_minus_one.judged({"net": [0.5, 2.0]}, 0.5).verdict == "holds"


class TestCleanPath:
    def test_a_post_norm_net_is_not_clean(self) -> None:
        torch.manual_seed(0)
        net = create_model("gpt_nano@post_norm", width=16, depth=2).double()
        found = clean_path.way(net, torch.randint(0, 256, (1, 4)))
        assert found.road == "changed"
        assert found.apart > 0.01
        assert clean_path.judged({"twin": found}, {"twin": found}).verdict == "does not hold"

    def test_one_bit_is_enough(self) -> None:
        clean = clean_path.Way(road="unchanged", factor=1.0, apart=0.0)
        nearly = clean_path.Way(road="unchanged", factor=1.0, apart=1e-16)
        changed = clean_path.Way(road="changed", factor=None, apart=1.0)
        assert clean_path.judged({"pre": clean}, {"post": changed}).verdict == "holds"
        assert clean_path.judged({"pre": nearly}, {"post": changed}).verdict == "does not hold"
        assert clean_path.judged({"pre": clean}, {"post": clean}).verdict == "does not hold"

    def test_a_scaled_stream_is_not_clean(self) -> None:
        torch.manual_seed(0)
        net = create_model("gpt_nano@scaled(lam=0.5,mu=1.0)", width=16, depth=1).double()
        found = clean_path.way(net, torch.randint(0, 256, (1, 4)))
        assert found.road == "scaled"
        assert abs(found.apart - 0.75) < 1e-12  # two sublayers: a quarter arrives
        changed = clean_path.Way(road="changed", factor=None, apart=1.0)
        assert clean_path.judged({"twin": found}, {"other": changed}).verdict == "does not hold"


class TestLowerBound:
    def test_singular_values_by_numpy(self) -> None:
        torch.manual_seed(0)
        weight = torch.randn(64, 64).double() / 9
        net = create_model("mlp2", width=64).double()
        for unit in net.stack.built_units():
            with torch.no_grad():
                unit.branches[0].linear1.weight.copy_(weight)
                unit.branches[0].linear1.bias.zero_()
        x = torch.zeros(1, 64).double()  # where the slope of tanh is 1
        expected = np.linalg.svd(np.eye(64) + weight.numpy(), compute_uv=False)[-1]
        for found in lower_bound.bounds(net, x):
            assert abs(found.least - expected) < 1e-10
            assert abs(found.branch - np.linalg.norm(weight.numpy(), 2)) < 1e-10

    def test_a_relu_behind_the_sum_breaks_the_bound(self) -> None:
        torch.manual_seed(0)
        net = create_model("resnet8", width=2, in_channels=1).double()
        # Branches of almost nothing: the bound promises nearly 1, and the ReLU cuts whole entries off.
        for passed in passes(net, torch.randn(2, 1, 4, 4).double()):
            for parameter in passed.unit.branches.parameters():
                with torch.no_grad():
                    parameter.mul_(1e-3)
        found = lower_bound.bounds(net, torch.randn(2, 1, 4, 4).double())
        assert lower_bound.judged({"twin": found}).verdict == "does not hold"

    def test_verdicts(self) -> None:
        small, large = lower_bound.Bound(branch=0.5, least=0.6), lower_bound.Bound(branch=3.0, least=0.01)
        assert lower_bound.judged({"net": [small]}).verdict == "holds"
        assert lower_bound.judged({"net": [small, large]}).verdict == "holds only if"
        broken = lower_bound.Bound(branch=0.5, least=0.4)
        assert lower_bound.judged({"net": [small, broken]}).verdict == "does not hold"
