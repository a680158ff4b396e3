"""Claims on what the stream is and carries: each measurement by other means, and on a net that breaks the claim."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from skipway.models import Stack, create_model
from skipway.study.claims import (
    act_after_add,
    forward_sum,
    identity_hard,
    relu_before_add,
    scale_product,
    thousand_on_imagenet,
    truncation,
    zero_init,
)
from skipway.study.claims._measures import passes


class TestPasses:
    def test_what_units_read_and_write(self) -> None:
        torch.manual_seed(0)
        net, batch = create_model("resnet8", width=4), torch.randn(2, 3, 8, 8)
        found = passes(net, batch)
        with torch.no_grad():
            x = net.stem(batch)
            for passed, unit in zip(found, net.stack.units, strict=True):
                assert torch.equal(passed.x, x)
                x = unit(x)
                assert torch.equal(passed.out, x)
        assert [p.keeps_shape for p in found] == [True, False, False]


class TestForwardSum:
    def test_by_hand(self) -> None:
        torch.manual_seed(0)
        net, batch = create_model("resnet20@preact", width=4).double(), torch.randn(2, 3, 8, 8).double()
        assert [len(s) for s in forward_sum.stretches(net, batch)] == [3, 2, 2]
        with torch.no_grad():
            x = first = net.stem(batch)
            total = 0
            for unit in list(net.stack.units)[:3]:
                total = total + unit.branches[0](x)
                x = unit(x)
        assert (x - first - total).abs().max() < 1e-13
        widest, pairs = forward_sum.widest(net, batch)
        assert pairs == 6 + 3 + 3
        assert 0 < widest < 1e-14  # rounding, and not the run repeated

    @pytest.mark.parametrize("name", ["resnet20", "plain20", "resnet20@preact(shortcut=C)", "resnet20@scaled"])
    def test_what_stands_on_the_stream_breaks_it(self, name: str) -> None:
        torch.manual_seed(0)
        gap, pairs = forward_sum.widest(create_model(name, width=4).double(), torch.randn(2, 3, 8, 8).double())
        assert gap > forward_sum.CONTRAST
        assert forward_sum.judged({"twin": (gap, pairs)}, {}).verdict == "does not hold"


class TestScaleProduct:
    @pytest.mark.parametrize("lam", [0.5, 1.0, 1.1])
    def test_by_hand(self, lam: float) -> None:
        net, batch = scale_product.deep(lam, 6)
        x = start = batch.clone().requires_grad_()
        for unit in net.stack.units:
            x = lam * x + unit.branches[0](x).detach()
        weights = torch.randn(x.shape, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((x * weights).sum(), start)
        expected = float(gradient.norm() / weights.norm())
        found = scale_product.road(net, batch, lam)
        assert abs(found.backward / expected - 1) < 1e-12
        assert found.forward == pytest.approx(lam**6, rel=1e-12)
        assert scale_product.judged([found]).verdict == "holds"

    def test_a_wrong_lambda_is_found(self) -> None:
        net, batch = scale_product.deep(0.9, 4)
        found = scale_product.road(net, batch, 0.90001, forward=False)
        assert scale_product.judged([found]).verdict == "does not hold"

    def test_a_road_that_is_none(self) -> None:
        nothing = scale_product.Road(lam=0.5, units=3, backward=float("nan"), forward=None)
        right = scale_product.Road(lam=0.5, units=3, backward=0.125, forward=0.125)
        assert scale_product.judged([right, nothing]).verdict == "does not hold"


class TestReluBeforeAdd:
    def test_other_designs_shrink_the_stream(self) -> None:
        torch.manual_seed(0)
        for name in ("resnet14@preact", "resnet14"):
            net = create_model(name, width=4, in_channels=1)
            found = {"at the start": relu_before_add.least_growth(net, torch.randn(4, 1, 8, 8))}
            assert relu_before_add.judged(found, -1.0).verdict == "does not hold"

    def test_by_hand(self) -> None:
        torch.manual_seed(0)
        net, batch = create_model("resnet8@relu_before_add", width=4, in_channels=1), torch.randn(4, 1, 8, 8)
        with torch.no_grad():
            x = net.stem(batch)
            expected = float((net.stack.units[0](x) - x).min())
        assert relu_before_add.least_growth(net, batch) == [expected]
        assert expected == 0


class NoReluBehind(zero_init.DocumentBlock):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.f(x)


class TestZeroInit:
    def test_without_the_relu_it_is_exact(self) -> None:
        found = zero_init.departures([(NoReluBehind(8), 8)])
        assert zero_init.judged(found, found).verdict == "holds"

    def test_without_the_zeros_it_is_not(self) -> None:
        block = zero_init.DocumentBlock(8)
        nn.init.ones_(block.f[-1].weight)
        found = zero_init.departures([(block, 8)])
        assert zero_init.judged(found, found).verdict == "does not hold"

    def test_the_default_net_does_not_start_as_the_identity(self) -> None:
        assert zero_init.departures(zero_init.units_of("resnet8@preact"))["any x"] > 0.1

    def test_by_hand(self) -> None:
        x = torch.randn(2, 4, 3, 3)
        block = zero_init.DocumentBlock(4)
        assert torch.equal(block(x), x.clamp(min=0))


class TestIdentityHard:
    def test_the_plain_stack_can_be_the_identity(self) -> None:
        net = identity_hard.stack("plain", 3)
        eye = torch.eye(identity_hard.WIDTH)
        for unit in net.built_units():
            first, _, second = unit.branches[0].children()
            with torch.no_grad():
                first.weight.copy_(torch.cat((eye, -eye)))
                second.weight.copy_(torch.cat((eye, -eye), dim=1))
                first.bias.zero_()
                second.bias.zero_()
        assert identity_hard.error(net) < 1e-12

    def test_at_zero_weights(self) -> None:
        assert identity_hard.error(identity_hard.zeroed_(identity_hard.stack("plain", 2))) == 1
        assert identity_hard.error(identity_hard.zeroed_(identity_hard.stack("post_act", 2))) == 0

    def test_verdicts(self) -> None:
        judged = identity_hard.judged
        assert judged({2: 0.5, 8: 1.0}, {2: 0.1, 8: 0.1}, {2: 0.0, 8: 0.0}).verdict == "holds"
        assert judged({2: 0.001, 8: 1.0}, {2: 0.0, 8: 0.1}, {2: 0.0, 8: 0.0}).verdict == "holds only if"
        assert judged({2: 0.001, 8: 0.001}, {2: 0.0, 8: 0.0}, {2: 0.0, 8: 0.0}).verdict == "does not hold"
        assert judged({2: 0.5, 8: 1.0}, {2: 0.1, 8: 0.1}, {2: 0.0, 8: 1e-9}).verdict == "does not hold"
        assert judged({2: 0.5, 8: 0.5}, {2: 0.6, 8: 0.6}, {2: 0.0, 8: 0.0}).verdict == "does not hold"

    def test_learning_lowers_the_error(self) -> None:
        torch.manual_seed(0)
        net = identity_hard.stack("post_act", 1)
        assert identity_hard.learnt(net, 100) < 0.5 * identity_hard.error(identity_hard.stack("post_act", 1))


class TestDocumentary:
    def test_another_table_says_otherwise(self) -> None:
        published = thousand_on_imagenet.PUBLISHED
        assert thousand_on_imagenet.judged(published).figure.startswith("not so in the paper")
        deeper = (*published, thousand_on_imagenet.Published(data="ImageNet", layers=1001, error=19.0))
        assert thousand_on_imagenet.judged(deeper).figure.startswith("so in the paper")

    def test_the_other_net_says_otherwise(self) -> None:
        new, original = act_after_add.forms("resnet8@preact"), act_after_add.forms("resnet8")
        assert "in front of the weight layers" in act_after_add.judged(new, original).figure
        assert "not settled" in act_after_add.judged(original, new).figure


class TestTruncation:
    def test_by_hand(self) -> None:
        torch.manual_seed(0)
        net, batch = create_model("resnet8", width=4, in_channels=1), torch.randn(4, 1, 8, 8)
        before = {name: value.clone() for name, value in net.named_buffers()}
        found = truncation.cut(net, batch)
        assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())
        with torch.no_grad():
            x = net.stem(batch)
            y = x + net.stack.units[0].branches[0](x)
        assert found.entries == (float((y < 0).float().mean()),)
        assert found.energy[0] == pytest.approx(float(y[y < 0].square().sum() / y.square().sum()), rel=1e-5)

    def test_nothing_is_cut_where_branches_are_not_negative(self) -> None:
        net = create_model("resnet8@post_act(zero_init=true)", width=4, in_channels=1)
        assert truncation.cut(net, torch.randn(4, 1, 8, 8)).entries == (0.0,)

    def test_pre_activation_has_nothing_to_cut(self) -> None:
        net = create_model("resnet8@preact", width=4, in_channels=1)
        assert truncation.cut(net, torch.randn(4, 1, 8, 8)).entries == ()

    @pytest.mark.exhaustive
    def test_followed(self) -> None:
        found = truncation.followed(14, steps=10, batch_size=8, width=4)
        assert [one.step for one in found] == [0, 2, 4, 6, 8, 10]
        assert {len(one.entries) for one in found} == {4}
        assert found[0].entries != found[-1].entries

    def test_verdicts(self) -> None:
        def looks(start: float, end: float) -> list[truncation.Cut]:
            return [truncation.Cut(step=k, entries=(v,), energy=(v,)) for k, v in enumerate((start, end))]

        assert truncation.judged({164: looks(0.3, 0.05), 1001: looks(0.3, 0.2)}).verdict == "holds"
        assert truncation.judged({164: looks(0.3, 0.05), 1001: looks(0.3, 0.06)}).verdict == "holds only if"
        assert truncation.judged({164: looks(0.3, 0.2), 1001: looks(0.3, 0.4)}).verdict == "holds only if"
        assert truncation.judged({164: looks(0.3, 0.3), 1001: looks(0.3, 0.3)}).verdict == "does not hold"


def test_stacks_are_passed_too() -> None:
    """What measures nets measures stacks of anybody's branches as well."""
    stack = Stack([nn.Linear(3, 3) for _ in range(2)], "post_act", act="none")
    assert len(passes(stack, torch.randn(2, 3))) == 2
