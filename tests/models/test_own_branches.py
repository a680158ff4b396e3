"""`Unit` and `Stack` around anybody's branches; shapes that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipway
from skipway.blocks import Norm
from skipway.errors import ShapeMismatchError, SkipwayError, UnknownNameError
from skipway.form import Op


def conv_branch(a: int = 8, b: int = 8, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(a, b, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(b),
        nn.ReLU(),
        nn.Conv2d(b, b, 3, padding=1, bias=False),
    )


def test_unit_is_preactivation_by_default() -> None:
    torch.manual_seed(0)
    branch = conv_branch()
    unit = skipway.Unit(branch)
    x = torch.randn(4, 8, 6, 6)
    expected = x + branch(F.relu(F.batch_norm(x, None, None, training=True)))
    torch.testing.assert_close(unit(x), expected)
    assert str(unit.form) == "x' = x + Conv3x3·ReLU·BN·Conv3x3·ReLU·BN(x)"


@pytest.mark.parametrize(
    ("design", "expected"),
    [
        ("post_act", lambda x, f: F.relu(x + f(x))),
        ("plain", lambda x, f: F.relu(f(x))),
        ("scaled(lam=0.5,mu=2)", lambda x, f: F.relu(0.5 * x + 2 * f(x))),
        ("mean", lambda x, f: F.relu((x + f(x)) / 2)),
        ("multiply", lambda x, f: F.relu(x * (1 + f(x)))),
        ("relu_before_add", lambda x, f: x + F.relu(f(x))),
        ("relu_only_preact", lambda x, f: x + f(F.relu(x))),
        ("dense", lambda x, f: torch.cat((x, f(F.relu(F.batch_norm(x, None, None, training=True)))), 1)),
        ("bn_after_add", lambda x, f: F.relu(F.batch_norm(x + f(x), None, None, training=True))),
    ],
)
def test_unit_of_each_design(design: str, expected: object) -> None:
    torch.manual_seed(0)
    branch = conv_branch()
    x = torch.randn(4, 8, 6, 6)
    kept = x.clone()
    torch.testing.assert_close(skipway.Unit(branch, design)(x), expected(x, branch))  # type: ignore[operator]
    torch.testing.assert_close(x, kept, rtol=0, atol=0)


def test_tokens_and_multi_head_attention() -> None:
    torch.manual_seed(0)

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    branch = Attend()
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(skipway.Unit(branch, "pre_norm")(x), x + branch(F.layer_norm(x, (12,))))
    torch.testing.assert_close(skipway.Unit(branch, "post_norm(norm=rms)")(x), F.rms_norm(x + branch(x), (12,)))


def test_a_shape_that_does_not_fit_names_both_shapes_and_the_projection_as_code() -> None:
    with pytest.raises(ShapeMismatchError) as error:
        skipway.Unit(conv_branch(16, 32, 2), "post_act")
    assert str(error.value) == (
        "shortcut and branch do not fit: shortcut (N, 16, H, W), branch (N, 32, H/2, W/2)\n"
        "expected: equal shapes\n"
        "try: shortcut=nn.Conv2d(16, 32, kernel_size=1, stride=2, bias=False), or the design option shortcut=B"
    )
    with pytest.raises(ShapeMismatchError) as error:
        skipway.Unit(nn.Linear(64, 128), "pre_norm")
    assert str(error.value) == (
        "shortcut and branch do not fit: shortcut (N, T, 64), branch (N, T, 128)\n"
        "expected: equal shapes\n"
        "try: shortcut=nn.Linear(64, 128)"
    )


def test_what_the_error_says_mends_it() -> None:
    x = torch.randn(2, 16, 7, 7)
    given = skipway.Unit(
        conv_branch(16, 32, 2), "post_act", shortcut=nn.Conv2d(16, 32, kernel_size=1, stride=2, bias=False)
    )
    assert given(x).shape == (2, 32, 4, 4)
    assert given.form.shortcut == (Op("projection", "1x1/2"),)
    assert skipway.Unit(conv_branch(16, 32, 2), "post_act(shortcut=B)")(x).shape == (2, 32, 4, 4)
    assert skipway.Unit(conv_branch(16, 32, 2), "preact(shortcut=A)")(x).shape == (2, 32, 4, 4)
    tokens = skipway.Unit(nn.Linear(64, 128), "pre_norm", shortcut=nn.Linear(64, 128))
    assert tokens(torch.randn(2, 3, 64)).shape == (2, 3, 128)


def test_option_a_cannot_narrow() -> None:
    with pytest.raises(ShapeMismatchError, match=r"nn\.Conv2d\(16, 8, kernel_size=1, stride=1, bias=False\)"):
        skipway.Unit(conv_branch(16, 8), "post_act(shortcut=A)")


def test_a_branch_that_turns_out_to_change_the_shape_when_run() -> None:
    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x)[:, :, ::2, ::2]

    with pytest.raises(ShapeMismatchError, match=r"branch \(N, 8, H/2, W/2\)"):
        skipway.Unit(Halving(), "post_act")  # a run on zeros tells it already
    with pytest.raises(ShapeMismatchError) as error:
        skipway.Unit(Halving(), "post_act", stride=1)(torch.randn(2, 8, 6, 6))
    assert str(error.value) == (
        "shortcut and branch do not fit: shortcut (2, 8, 6, 6), branch (2, 8, 3, 3)\n"
        "expected: equal shapes\n"
        "try: shortcut=nn.Conv2d(8, 8, kernel_size=1, stride=2, bias=False)"
    )
    with pytest.raises(ShapeMismatchError, match="cannot concatenate stream"):
        skipway.Unit(Halving(), "dense", stride=1)(torch.randn(2, 8, 6, 6))


def test_widths_that_cannot_be_seen() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.eye(5))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w

    with pytest.raises(SkipwayError, match=r"a branch Hidden whose width cannot be seen in its layers"):
        skipway.Unit(Hidden(), "pre_norm")
    unit = skipway.Unit(Hidden(), "pre_norm", in_width=5, out_width=5)
    assert unit(torch.randn(2, 5)).shape == (2, 5)
    with pytest.raises(SkipwayError, match="zero_init on a branch without a norm"):
        skipway.Unit(Hidden(), "pre_norm(zero_init=true)", in_width=5, out_width=5)


def test_wrong_words() -> None:
    with pytest.raises(UnknownNameError, match="unknown norm 'bach'\nexpected: did you mean 'batch'"):
        skipway.Unit(conv_branch(), norm="bach")
    with pytest.raises(UnknownNameError, match="unknown activation 'rely'\nexpected: did you mean 'relu'"):
        skipway.Unit(conv_branch(), act="rely")
    with pytest.raises(SkipwayError, match="norm 'layer' on layout NCHW"):
        skipway.Unit(conv_branch(), norm="layer")
    with pytest.raises(SkipwayError, match="cannot be split into single layers"):
        skipway.Unit(conv_branch(), "one_layer_skip")
    with pytest.raises(TypeError, match="unexpected keyword"):
        skipway.Unit(conv_branch(), activation="relu")  # type: ignore[call-arg]
    with pytest.raises(SkipwayError, match="is not reversible"):
        skipway.Unit(conv_branch()).inverse(torch.randn(1, 8, 4, 4))


def test_stack_opens_closes_and_applies_the_first_and_last_unit_rule() -> None:
    torch.manual_seed(0)
    branches = [conv_branch() for _ in range(3)]
    stack = skipway.Stack(branches, "preact")
    x = torch.randn(4, 8, 6, 6)

    def bn_relu(y: Tensor) -> Tensor:
        return F.relu(F.batch_norm(y, None, None, training=True))

    y = bn_relu(x)
    y = y + branches[0](y)
    for branch in branches[1:]:
        y = y + branch(bn_relu(y))
    torch.testing.assert_close(stack(x), bn_relu(y))
    with pytest.raises(SkipwayError, match="a stack of no branches"):
        skipway.Stack([])
    with pytest.raises(SkipwayError, match=r"shortcuts for units \[3\] of a stack of 3"):
        skipway.Stack(branches, shortcuts={3: nn.Identity()})


def test_stack_with_a_change_of_shape() -> None:
    stack = skipway.Stack(
        [conv_branch(4, 4), conv_branch(4, 8, 2), conv_branch(8, 8)],
        "post_act",
        shortcuts={1: nn.Conv2d(4, 8, 1, stride=2, bias=False)},
    )
    assert stack(torch.randn(2, 4, 8, 8)).shape == (2, 8, 4, 4)


def test_gradient_in_the_first_of_forty_tanh_layers() -> None:
    # A well-known demonstration: default initialisation, width 64, batch 8. Its author reports 1.4e-06 without and
    # 2.6e+01 with the shortcut.
    def gradient(design: str) -> float:
        torch.manual_seed(0)
        branches = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(40)]
        x = torch.randn(8, 64, requires_grad=True)
        skipway.Stack(branches, design)(x).sum().backward()
        assert x.grad is not None
        return float(x.grad.norm())

    def direct(skip: bool) -> float:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(40)]
        x = torch.randn(8, 64, requires_grad=True)
        y = x
        for layer in layers:
            y = y + layer(y) if skip else layer(y)
        y.sum().backward()
        assert x.grad is not None
        return float(x.grad.norm())

    assert gradient("plain") == direct(skip=False) < 1e-5
    assert gradient("post_act") == direct(skip=True) > 10


def test_zero_init_of_own_branches() -> None:
    x = torch.randn(2, 5, 16)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    stack = skipway.Stack([mlp], "pre_norm(zero_init=true)")
    torch.testing.assert_close(stack.units[0](x), x, rtol=0, atol=0)
    assert mlp[0].weight.abs().sum() > 0


def test_a_plain_unit_overwrites_nothing_of_its_branch() -> None:
    torch.manual_seed(0)
    branches = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Sigmoid()) for _ in range(2)]
    x = torch.randn(2, 4, 6, 6, requires_grad=True)
    y = skipway.Stack(branches, "plain")(x)
    y.square().sum().backward()
    expected = F.relu(branches[1](F.relu(branches[0](x))))
    torch.testing.assert_close(y, expected)
    skipway.Stack([nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(2)], "plain")(
        x
    ).sum().backward()
    unit = skipway.Unit(nn.Sequential(nn.Dropout()), "plain", in_width=4, out_width=4, layout="NCHW").eval()
    kept = x.detach().clone()
    unit(x.detach())
    assert torch.equal(x, kept)


def test_norms_that_were_named_are_kept() -> None:
    x = torch.randn(2, 3, 8)
    for design in ("pre_norm", "post_norm"):
        branch = nn.Linear(8, 8)
        torch.testing.assert_close(skipway.Unit(branch, design, norm="none")(x), x + branch(x))
        assert any(isinstance(m, nn.RMSNorm) for m in skipway.Unit(branch, design, norm="rms").modules())
        assert any(isinstance(m, nn.LayerNorm) for m in skipway.Unit(branch, design).modules())
        assert not any(isinstance(m, nn.LayerNorm) for m in skipway.Stack([branch], design, norm="none").modules())
    for design in ("pre_norm", "post_norm", "preact"):
        with pytest.raises(SkipwayError, match="norm 'batch' on layout NTD"):
            skipway.Unit(nn.Linear(8, 8), design, norm="batch")


@pytest.mark.parametrize("kind", ["layernorm", "none"])
def test_no_norm_stands_in_for_another(kind: str) -> None:
    with pytest.raises(SkipwayError, match=f"norm '{kind}'"):
        Norm(kind=kind).make(8, "NTD")  # type: ignore[arg-type]


@pytest.mark.parametrize("design", ["plain", "dense"])
def test_a_shortcut_for_designs_that_have_none(design: str) -> None:
    branch = nn.Conv2d(4, 8, 3, padding=1)
    with pytest.raises(SkipwayError, match=f"a module for the shortcut of design '{design}'"):
        skipway.Unit(branch, design, shortcut=nn.Conv2d(4, 8, 1))


def test_what_own_branches_of_dense_append_is_what_they_write() -> None:
    branches = [nn.Linear(8, 3), nn.Linear(11, 3)]
    with pytest.raises(SkipwayError, match="dense with growth=5 and a branch that writes 3 channels"):
        skipway.Stack(branches, "dense(growth=5)")
    assert skipway.Stack(branches, "dense(growth=3)")(torch.randn(2, 8)).shape == (2, 14)


def test_a_stack_of_norms_has_no_weights_to_scale() -> None:
    with pytest.raises(SkipwayError, match="init=gpt2 on a branch without a convolution or linear layer"):
        skipway.Stack([nn.LayerNorm(8)], "pre_norm(init=gpt2)")


@pytest.mark.parametrize("branch", [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, padding=1)])
def test_a_projection_is_proposed_only_where_it_mends(branch: nn.Module) -> None:
    with pytest.raises(ShapeMismatchError) as error:
        skipway.Unit(branch, "post_act")(torch.randn(2, 4, 8, 8))
    assert error.value.hint == "padding in the branch, so that it keeps height and width: padding=1 with kernel_size=3"
    with pytest.raises(ShapeMismatchError) as error:
        skipway.Unit(nn.Flatten(1, 2), "post_act", in_width=4, out_width=4)(torch.randn(2, 3, 4))
    assert error.value.hint == "a branch that changes the last dimension only"
