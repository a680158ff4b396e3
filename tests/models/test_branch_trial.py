"""Anybody's branch is run once on zeros: widths and order are those of its execution, not of its registration."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipway
from skipway.blocks import OpaqueBlock
from skipway.errors import SkipwayError


class GatedFeedForward(nn.Module):
    """LLaMA's, registered and executed as its authors have it."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LastFirst(nn.Module):
    """The last layer registered first."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.out = nn.Linear(hidden, width)
        self.inp = nn.Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inp(x)))


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.attention(y, y, y, need_weights=False)[0]


class Matrix(nn.Module):
    """No layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class OnTokens(nn.Module):
    """A convolution along the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("branch", [GatedFeedForward(16, 32), LastFirst(16, 32), GatedFeedForward(16, 2**17)])
def test_a_stack_sees_the_width_that_is_read(branch: nn.Module) -> None:
    # The last one is so large that it is run on shapes alone.
    stack = skipway.Stack([branch], "pre_norm")
    assert (stack.units[0].plan.in_width, stack.units[0].plan.out_width) == (16, 16)  # type: ignore[union-attr]
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(stack.units[0](x), x + branch(F.layer_norm(x, (16,))))


@pytest.mark.parametrize("given", [{}, {"in_width": 16, "out_width": 16, "stride": 1, "layout": "NTD"}])
def test_initialisations_find_the_last_layer_that_is_executed(given: dict[str, Any]) -> None:
    torch.manual_seed(0)
    gated = GatedFeedForward(16, 64)
    skipway.Unit(gated, "pre_norm(init=gpt2)", **given)
    assert float(gated.w2.weight.std().detach()) == pytest.approx(0.02 / math.sqrt(1), rel=0.1)
    assert float(gated.w3.weight.std().detach()) == pytest.approx(1 / math.sqrt(3 * 16), rel=0.1)
    branch = LastFirst(16, 64)
    x = torch.randn(2, 5, 16)
    unit = skipway.Unit(branch, "post_act(zero_init=true)", act="none", **given)
    torch.testing.assert_close(unit(x), x, rtol=0, atol=0)
    assert branch.inp.weight.abs().sum() > 0


def test_layers_whose_weights_are_read_without_a_call() -> None:
    branch = Attend()
    x = torch.randn(2, 5, 12)
    unit = skipway.Unit(branch, "pre_norm(zero_init=true)")
    torch.testing.assert_close(unit(x), x, rtol=0, atol=0)
    assert branch.norm.weight.sum() == 12
    assert OpaqueBlock.of(branch).layers() == [branch.norm, branch.attention.out_proj]


def test_branches_side_by_side_are_not_strided_twice() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Conv2d(4, 6, 1, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat((self.a(x), self.b(x)), 1)

    block = OpaqueBlock.of(Both())
    assert (block.in_width, block.out_width, block.stride) == (4, 12, 2)
    assert skipway.Unit(Both(), "post_act(shortcut=B)")(torch.randn(2, 4, 9, 9)).shape == (2, 12, 5, 5)


def test_a_trial_leaves_nothing_behind() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm, self.calls = nn.Linear(8, 8), nn.BatchNorm1d(8), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.norm(self.layer(x)) * torch.rand(())

    branch = Counting()
    heard: list[nn.Module] = []
    branch.layer.register_forward_hook(lambda module, *_: heard.append(module))
    state = {key: value.clone() for key, value in branch.state_dict().items()}
    torch.manual_seed(3)
    block = OpaqueBlock.of(branch)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
    assert block.calls == ("layer", "norm")
    assert (branch.calls, heard, branch.training) == (0, [], True)
    assert len(branch.layer._forward_hooks) == 1
    assert not branch.norm._forward_hooks
    assert all(torch.equal(value, state[key]) for key, value in branch.state_dict().items())


def test_code_that_needs_more_than_a_trial_is_read_off_its_layers() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 4), nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            assert x.abs().sum() > 0, "real numbers, please"
            return self.second(self.first(x))

    block = OpaqueBlock.of(Recurrent())
    assert (block.in_width, block.out_width, block.calls) == (8, 6, None)
    assert [layer.out_features for layer in block.layers()[1:]] == [4, 6]  # type: ignore[union-attr]


def test_a_stack_is_told_widths_that_no_layer_shows() -> None:
    with pytest.raises(SkipwayError) as error:
        skipway.Stack([Matrix()], "pre_norm")
    assert str(error.value) == (
        "a branch Matrix whose width cannot be seen in its layers\n"
        "expected: the number of channels that it reads and writes\n"
        "try: in_width=64, out_width=64, for Unit and Stack"
    )
    stack = skipway.Stack([Matrix(), Matrix()], "pre_norm", in_width=5, out_width=5, layout="NTD")
    assert stack(torch.randn(2, 3, 5)).shape == (2, 3, 5)


def test_widths_of_branches_that_change_the_shape_stay_as_found() -> None:
    def conv(a: int, b: int, stride: int = 1) -> nn.Module:
        return nn.Conv2d(a, b, 3, stride=stride, padding=1)

    branches = [conv(4, 4), conv(4, 8, 2), conv(8, 8), nn.Dropout()]
    stack = skipway.Stack(branches[:3], "post_act(shortcut=B)", in_width=4, out_width=4, layout="NCHW")
    assert stack(torch.randn(2, 4, 8, 8)).shape == (2, 8, 4, 4)
    with pytest.raises(SkipwayError, match=r"^in_width=6 and a first branch that reads 4 channels"):
        skipway.Stack(branches[:3], "post_act(shortcut=B)", in_width=6)


def test_convolutions_over_sequences_and_volumes() -> None:
    for branch in (nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(16, 16, 3, padding=1), nn.Conv3d(8, 8, 3, padding=1)):
        with pytest.raises(SkipwayError) as error:
            skipway.Stack([branch], "post_act")
        assert str(error.value) == (
            f"a branch with {type(branch).__name__}, which reads neither images (N,C,H,W) nor tokens (N,T,D)\n"
            "expected: a branch from one of these layouts to the same; it may transpose inside\n"
            'try: layout="NTD", in_width=64, out_width=64 for one that does, for Unit and Stack'
        )
    assert skipway.Unit(OnTokens(), "pre_norm")(torch.randn(2, 5, 8)).shape == (2, 5, 8)


def test_a_layer_that_works_in_place_may_be_registered_first() -> None:
    class Behind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.conv = nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.conv(x))

    x = torch.randn(2, 4, 5, 5)
    kept = x.clone()
    skipway.Unit(Behind(), "post_act")(x)
    assert torch.equal(x, kept)


def test_a_large_branch_is_not_copied_and_no_branch_is_run_without_need() -> None:
    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            devices.append((x.device.type, self.weight.device.type))
            return super().forward(x)

    devices: list[tuple[str, str]] = []
    OpaqueBlock.of(Spy(16, 16))
    OpaqueBlock.of(Spy(1100, 1100))
    assert devices == [("cpu", "cpu"), ("meta", "meta")]
    OpaqueBlock.of(Spy(16, 16), in_width=16, out_width=16)
    skipway.Unit(Spy(16, 16), "pre_norm", in_width=16, out_width=16)
    assert len(devices) == 2
