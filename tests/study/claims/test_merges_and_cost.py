"""Claims on merges, shapes, parameters, first steps and cost: by other means, and on what breaks them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from skipway.blocks.shortcut import SubsamplePad
from skipway.models import Unit, create_model
from skipway.study.claims import (
    cost_linear,
    early_steps,
    merge_average,
    merge_concat,
    merge_multiply,
    no_extra_parameters,
    projection,
    scale_product,
    shape_condition,
)
from skipway.study.claims._measures import passes
from skipway.study.claims._shapes import Mended, Refusal, mended, refusal

TRAINED = Mended(before=1.0, behind=0.1, weights=4, moved=0.2)
STUCK = Mended(before=1.0, behind=0.9, weights=4, moved=0.2)


class TestParameters:
    def test_published_counts(self) -> None:
        assert no_extra_parameters.depths() == [20, 32, 44, 56, 110]
        assert no_extra_parameters.counts([20]) == {20: (269_722, 269_722)}

    @pytest.mark.parametrize("residual", ["resnet{depth}@post_act(shortcut=B)", "resnet{depth}@exclusive_gate"])
    def test_what_costs_parameters_is_found(self, residual: str) -> None:
        found = no_extra_parameters.counts([8], residual)
        assert no_extra_parameters.judged(found, found).verdict == "does not hold"


class TestShapes:
    def test_an_unclear_error_is_not_enough(self) -> None:
        wrong = nn.Conv2d(4, 8, 3, padding=1)
        found = refusal(lambda: Unit(wrong, "post_act"), "(N, 4, H, W)", "nn.Linear(4, 8)")
        assert found.names == {"(N, 4, H, W)": True, "nn.Linear(4, 8)": False}
        assert shape_condition.judged(found, TRAINED, True, False).verdict == "does not hold"

    def test_a_unit_that_fits_is_not_refused(self) -> None:
        found = refusal(lambda: Unit(nn.Conv2d(4, 4, 3, padding=1), "post_act"))
        assert found == Refusal(text="", names={})
        assert not found.clear
        assert shape_condition.judged(found, TRAINED, True, False).verdict == "does not hold"

    def test_a_projection_that_takes_no_part(self) -> None:
        torch.manual_seed(0)
        frozen = nn.Linear(4, 8)
        for parameter in frozen.parameters():
            parameter.requires_grad_(False)
        found = mended(nn.Linear(4, 8), frozen, torch.randn(3, 4), steps=5)
        assert found.moved == 0
        assert not found.trains

    def test_verdicts(self) -> None:
        clear = Refusal(text="refused", names={"it": True})
        assert shape_condition.judged(clear, TRAINED, True, False).verdict == "holds"
        assert shape_condition.judged(clear, STUCK, True, False).verdict == "does not hold"
        assert shape_condition.judged(clear, TRAINED, False, False).verdict == "does not hold"

    def test_torch_itself(self) -> None:
        assert shape_condition.torch_refuses(torch.zeros(2, 3), torch.zeros(2, 4))
        assert not shape_condition.torch_refuses(torch.zeros(2, 1), torch.zeros(2, 4))


class TestProjection:
    def test_zeros_train_too(self) -> None:
        torch.manual_seed(0)
        found = mended(nn.Conv2d(4, 8, 3, padding=1), SubsamplePad(1, 4), torch.randn(2, 4, 4, 4), steps=80)
        assert found.weights == 0
        assert found.trains

    def test_verdicts(self) -> None:
        clear, silent = Refusal(text="refused", names={"it": True}), Refusal(text="", names={"it": False})
        padded = Mended(before=1.0, behind=0.1, weights=0, moved=0.0)
        useless = Mended(before=1.0, behind=1.0, weights=0, moved=0.0)
        judged = projection.judged
        assert judged({"images": clear}, {"images": TRAINED}, padded).verdict == "holds only if"
        assert judged({"images": clear}, {"images": TRAINED}, useless).verdict == "holds"
        assert judged({"images": silent}, {"images": TRAINED}, padded).verdict == "does not hold"
        assert judged({"images": clear}, {"images": STUCK}, padded).verdict == "does not hold"


class TestConcat:
    def test_widths_by_hand(self) -> None:
        net, batch = merge_concat.one_stage("dense(growth=5)", 3), torch.randn(2, 1, 8, 8)
        assert [p.out.shape[1] for p in passes(net, batch)] == [21, 26, 31]
        assert merge_concat.law_broken(net, batch, 5) == 0

    def test_another_law_is_found(self) -> None:
        batch = torch.randn(2, 1, 8, 8)
        assert merge_concat.law_broken(merge_concat.one_stage("dense(growth=5)", 3), batch, 4) == 3
        assert merge_concat.law_broken(merge_concat.one_stage("preact", 3), batch, 16) == 3

    def test_held_bytes_of_known_layers(self) -> None:
        # A linear layer keeps its input, tanh its output, each in float32.
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        assert merge_concat.held_bytes(net, torch.randn(3, 4)) == 4 * 3 * (4 + 6)

    def test_the_smallest_that_reaches_it(self) -> None:
        losses = {2: [1.0] * 20, 4: [0.5] * 20, 8: [0.4] * 20}
        assert merge_concat.smallest(losses, 0.5) == 4
        assert merge_concat.smallest(losses, 0.1) is None

    def test_verdicts(self) -> None:
        def multiples(held: float) -> dict[str, float]:
            return {"parameters": 2.0, "flops": 2.0, "held": held}

        judged = merge_concat.judged
        assert judged(0, multiples(2.0), multiples(1.8), 4, {}).verdict == "holds"
        assert judged(0, multiples(5.0), multiples(1.8), 4, {}).verdict == "holds only if"
        assert judged(0, multiples(2.0), None, None, {}).verdict == "holds only if"
        assert judged(0, multiples(5.0), multiples(1.0), 4, {}).verdict == "does not hold"
        assert judged(1, multiples(2.0), multiples(2.0), 4, {}).verdict == "does not hold"


class TestMultiply:
    def test_the_product_by_hand(self) -> None:
        torch.manual_seed(0)
        net, batch = merge_multiply.small(merge_multiply.PRODUCT, 5), torch.randn(4, 64).double()
        with torch.no_grad():
            x = batch
            for unit in net.stack.units:
                layer = unit.branches[0].linear1
                x = x * torch.tanh(x @ layer.weight.T + layer.bias)
        found = merge_multiply.through(net, batch)
        assert found.signal[-1] == pytest.approx(float(x.abs().max() / batch.abs().max()), rel=1e-12)

    def test_addition_in_place_of_the_product(self) -> None:
        torch.manual_seed(0)
        batch = torch.randn(4, 64).double()
        added = merge_multiply.through(merge_multiply.small("post_act"), batch)
        product = merge_multiply.through(merge_multiply.small(merge_multiply.PRODUCT), batch)
        losses = {"product": 2.3, "addition": 0.5}
        judged = merge_multiply.judged
        assert judged(product, added, added, losses).verdict == "holds"
        assert judged(product, added, added, {"product": math.inf, "addition": 0.5}).verdict == "holds"
        assert judged(product, added, added, {"product": 0.4, "addition": 0.5}).verdict == "holds only if"
        assert judged(added, added, added, losses).verdict == "does not hold"
        assert judged(product, product, added, losses).verdict == "does not hold"


class TestAverage:
    def curves(self, gaps: list[float]) -> dict[str, dict[int, list[float]]]:
        return {
            "average": {k: [1.0 + gap] * 10 for k, gap in enumerate(gaps)},
            "addition": {k: [1.0] * 10 for k in range(len(gaps))},
        }

    def test_verdicts(self) -> None:
        right = scale_product.Road(lam=0.5, units=4, backward=0.5**4, forward=None)
        judged = merge_average.judged
        assert judged([right], self.curves([0.3, 0.4, 0.5])).verdict == "holds"
        assert judged([right], self.curves([-0.3, -0.4, -0.5])).verdict == "does not hold"
        assert judged([right], self.curves([0.3, -0.4, 0.5])).verdict == "not measured"
        assert judged([right], self.curves([0.3])).verdict == "not measured"

    def test_weights_that_keep_the_variance_are_no_half(self) -> None:
        torch.manual_seed(0)
        net = create_model("mlp4@mean(keep=variance)").double()
        found = scale_product.road(net, torch.randn(2, 64).double(), 0.5, forward=False)
        assert found.backward == pytest.approx(0.25, rel=1e-12)
        assert merge_average.judged([found], self.curves([0.3, 0.4, 0.5])).verdict == "does not hold"


class TestEarlySteps:
    def judged(self, level: tuple[float, ...], rough: tuple[float, ...]) -> str:
        """Zero-init against default by seed: a shift of the level, and a change of the zigzag."""

        def curve(mean: float, zigzag: float) -> list[float]:
            return [mean + zigzag * (-1) ** k for k in range(10)]

        zero = {k: curve(2 + a, 0.5 + b) for k, (a, b) in enumerate(zip(level, rough, strict=True))}
        default = {k: curve(2, 0.5) for k in range(len(level))}
        return early_steps.judged({"zero": zero, "default": default}).verdict

    def test_verdicts(self) -> None:
        lower, higher, mixed = (-0.3, -0.31, -0.29), (0.3, 0.31, 0.29), (0.3, -0.3, 0.01)
        assert self.judged(lower, lower) == "holds"
        assert self.judged(lower, mixed) == "holds only if"
        assert self.judged(mixed, lower) == "holds only if"
        assert self.judged(higher, lower) == "does not hold"
        assert self.judged(mixed, mixed) == "not measured"

    def test_figures_by_hand(self) -> None:
        assert early_steps.level([1.0, 3.0, 2.0]) == 2
        assert early_steps.roughness([1.0, 3.0, 2.0]) == 1.5


class TestCost:
    def test_a_line_is_found(self) -> None:
        line = cost_linear.fitted({d: 3.0 + 0.5 * d for d in cost_linear.DEPTHS})
        assert (line.start, line.slope) == pytest.approx((3.0, 0.5))
        assert line.worst < 1e-12

    def test_residuals_are_relative_and_least(self) -> None:
        costs = {10: 10.5, 20: 19.0, 40: 41.0, 80: 79.0}
        line = cost_linear.fitted(costs)

        def squares(start: float, slope: float) -> float:
            return sum(((start + slope * d) / v - 1) ** 2 for d, v in costs.items())

        least = squares(line.start, line.slope)
        assert all(
            squares(line.start + a, line.slope + b) > least for a, b in ((0.1, 0), (-0.1, 0), (0, 0.01), (0, -0.01))
        )

    def test_verdicts(self) -> None:
        linear = {d: 2.0 * d for d in cost_linear.DEPTHS}
        square = {d: float(d) ** 1.1 for d in cost_linear.DEPTHS}

        def rounds(costs: dict[int, float], *slower: float) -> dict[int, list[float]]:
            return {d: [v, *(v * by for by in slower)] for d, v in costs.items()}

        assert cost_linear.judged(linear, rounds(linear)).verdict == "holds"
        assert (
            cost_linear.judged(linear, rounds(linear, 1.5, 1.4)).verdict == "holds"
        )  # a round that is slow as a whole
        bent = cost_linear.judged(linear, rounds(square))
        assert bent.verdict == "holds only if"
        assert "leave the line" in bent.condition
        assert cost_linear.judged(square, rounds(linear)).verdict == "does not hold"

    def test_a_restless_machine_is_said(self) -> None:
        linear = {d: 2.0 * d for d in cost_linear.DEPTHS}
        restless = {d: [v, v * (1.5 if d == 245 else 1.0)] for d, v in linear.items()}
        judgement = cost_linear.judged(linear, restless)
        assert judgement.verdict == "holds only if"
        assert "too much to judge" in judgement.condition

    def test_what_slows_a_round_down_is_taken_out(self) -> None:
        medians, spread = cost_linear.steadied({10: [1.0, 2.0, 3.0], 20: [2.0, 4.0, 6.0]})
        assert medians == pytest.approx({10: 2.0, 20: 4.0})
        assert spread < 1e-12

    def test_depths_are_one_family(self) -> None:
        units = [(d - 2) / 9 for d in cost_linear.DEPTHS]
        assert all(n == int(n) and int(n) % 2 for n in units)  # an even number of them would be basic blocks
        assert np.diff(np.log(units)).std() < 0.1

    def test_every_net_is_timed(self) -> None:
        nets = {8: create_model("resnet8", width=2), 14: create_model("resnet14", width=2)}
        found = cost_linear.step_seconds(nets, torch.randn(2, 3, 8, 8), rounds=1)
        assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found.values())
        assert all(p.grad is None for net in nets.values() for p in net.parameters())
