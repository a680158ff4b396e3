"""Every design against the same net written by hand, in float64: outputs and input gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import skipway
from oracle import cifar, tokens
from skipway.designs import DESIGNS


def randomised(model: nn.Module) -> dict[str, Tensor]:
    """Random parameters everywhere, so that zeros and ones hide nothing; by name."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return dict(model.named_parameters())


@pytest.mark.parametrize("design", [*cifar.FORMULAS, *cifar.STAGES])
def test_convolutional(design: str) -> None:
    torch.manual_seed(0)
    # Four units in the first stage, three of one shape in the others: even and odd.
    model = skipway.create_model(f"resnet{26 if design in cifar.STAGES else 14}@{design}", width=8).double()
    state = randomised(model)
    strides = [unit.plan.branches[0].block.stride for unit in model.stack.built_units()]
    if design == "dense":
        strides = [unit.plan.site.block.stride for unit in model.stack.built_units()]
    x = torch.randn(3, 3, 12, 12, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(5)
    ours = model(x)
    torch.manual_seed(5)
    theirs = cifar.cifar_net(design, state, strides, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    probe = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * probe).sum(), [x, *state.values()]),
        torch.autograd.grad((theirs * probe).sum(), [x, *state.values()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("backbone", ["gpt_nano", "bert_nano"])
@pytest.mark.parametrize("design", [*tokens.FORMULAS, *tokens.PAIRS])
def test_tokens(design: str, backbone: str) -> None:
    torch.manual_seed(0)
    model = skipway.create_model(f"{backbone}@{design}", depth=2, width=24).double()
    state = randomised(model)
    ids = torch.randint(256, (2, 7))
    causal = backbone == "gpt_nano"
    heads = model.stack.built_units()[0].plan.site.block.heads
    eps = 1e-5 if causal else 1e-12
    theirs = tokens.text_net(design, state, 4, ids, heads=heads, causal=causal, eps=eps, embedded=not causal)
    ours = model(ids)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    probe = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * probe).sum(), list(state.values())),
        torch.autograd.grad((theirs * probe).sum(), list(state.values())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def test_every_design_has_a_formula() -> None:
    written = {name.partition("(")[0] for name in (*cifar.FORMULAS, *cifar.STAGES, *tokens.FORMULAS)}
    assert written == set(DESIGNS)


def test_dropout_shortcut_in_eval_mode() -> None:
    # Read as the paper does, the shortcut is halved when testing; nn.Dropout leaves it whole.
    torch.manual_seed(0)
    x = torch.rand(2, 16, 8, 8)
    zero = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    nn.init.zeros_(zero.weight)
    torch.testing.assert_close(skipway.Unit(zero, "dropout_shortcut").eval()(x), x / 2)
    torch.testing.assert_close(skipway.Unit(zero, "dropout_shortcut(inverted=true)").eval()(x), x)
    kept = skipway.Unit(zero, "dropout_shortcut(p=0.2)").train()(x.repeat(32, 1, 1, 1))
    assert (kept.mean() / x.mean()).item() == pytest.approx(0.8, abs=0.01)


def test_gpt2_init_scales_the_last_weights_of_each_branch() -> None:
    torch.manual_seed(0)
    model = skipway.create_model("gpt_nano", depth=8, width=128)
    for i, unit in enumerate(model.stack.built_units()):
        branch = unit.branches[0]
        last = branch.linear2 if i % 2 else branch.out
        first = branch.linear1 if i % 2 else branch.qkv
        assert last.weight.std().item() == pytest.approx(0.02 / (2 * 8) ** 0.5, rel=0.03)
        assert first.weight.std().item() == pytest.approx(0.02, rel=0.03)
