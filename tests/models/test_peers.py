"""The same function as torchvision's and timm's models of the same weights."""

from __future__ import annotations

import re
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import skipway
from skipway.errors import SkipwayError


def randomise_(model: nn.Module) -> None:
    """Gains, shifts and running statistics away from their initial values, mildly, so that deep nets stay finite."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if re.search(r"(bn|norm|downsample\.1)\S*\.(weight|running_var)$", name):
                tensor.mul_(0.8 + 0.4 * torch.rand_like(tensor))
            elif re.search(r"(bn|norm|downsample\.1)\S*\.(bias|running_mean)$", name):
                tensor.add_(0.1 * torch.randn_like(tensor))


def outputs_and_gradient(model: nn.Module, x: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = model(x)
    return y.detach(), torch.autograd.grad((y * probe).sum(), x)[0]


def assert_same(ours: nn.Module, theirs: nn.Module, size: int) -> None:
    x, probe = torch.randn(2, 3, size, size), torch.randn(2, 1000)
    for mode in (True, False):
        a, b = (outputs_and_gradient(m.train(mode), x, probe) for m in (ours, theirs))
        for mine, peer in zip(a, b, strict=True):
            scale = peer.abs().max()
            assert scale > 0
            torch.testing.assert_close(mine / scale, peer / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    # The others are the same two kinds of units more often; their numbers of parameters are counted in any case.
    ["resnet18", "resnet50", *(pytest.param(f"resnet{d}", marks=pytest.mark.exhaustive) for d in (34, 101, 152))],
)
def test_torchvision_resnets(name: str) -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.get_model(name, weights=None)
    randomise_(theirs)
    ours = skipway.create_model(name)
    skipway.load_torchvision_state_dict(ours, theirs.state_dict())
    # One pass with batch statistics first, so that eval mode has statistics worth the name.
    warm = torch.randn(8, 3, 64, 64)
    with torch.no_grad():
        for model in (ours.train(), theirs.train()):
            for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
                norm.momentum = 1.0
            model(warm)
    assert_same(ours, theirs, 64)


def test_densenet121() -> None:
    # Parameters stand in order of execution in both, so they can be copied one by one.
    torch.manual_seed(0)
    theirs = torchvision.models.densenet121(weights=None)
    ours = skipway.create_model("densenet121")
    pairs = list(zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))
    with torch.no_grad():
        for mine, peer in pairs:
            mine.copy_(peer)
    assert_same(ours, theirs, 64)


def test_vit_small() -> None:
    torch.manual_seed(0)
    theirs: Any = timm.create_model("vit_small_patch16_224", pretrained=False)
    ours = skipway.create_model("vit_small_patch16_224")
    names = {"stem.class_token": "cls_token", "stem.positions": "pos_embed", "stem.conv.": "patch_embed.proj."}
    names |= {"stack.exit.": "norm.", "head.fc.": "head."}
    for i in range(12):
        attention, mlp = f"stack.units.{2 * i}.branches.0.", f"stack.units.{2 * i + 1}.branches.0."
        names |= {
            f"{attention}start.": f"blocks.{i}.norm1.",
            f"{attention}qkv.": f"blocks.{i}.attn.qkv.",
            f"{attention}out.": f"blocks.{i}.attn.proj.",
            f"{mlp}norm1.": f"blocks.{i}.norm2.",
            f"{mlp}linear1.": f"blocks.{i}.mlp.fc1.",
            f"{mlp}linear2.": f"blocks.{i}.mlp.fc2.",
        }
    state = theirs.state_dict()
    with torch.no_grad():
        for tensor in state.values():
            tensor.add_(0.02 * torch.randn_like(tensor))
    translated = {}
    for own in ours.state_dict():
        prefix = max((p for p in names if own.startswith(p)), key=len)
        translated[own] = state[names[prefix] + own.removeprefix(prefix)]
    ours.load_state_dict(translated)
    assert_same(ours, theirs, 224)


def test_wrong_state_dicts_are_refused_and_load_nothing() -> None:
    state = torchvision.models.resnet18(weights=None).state_dict()
    ours = skipway.create_model("resnet18")
    before = {k: v.clone() for k, v in ours.state_dict().items()}
    lacking = {k: v for k, v in state.items() if k != "layer4.1.conv2.weight"} | {"extra": torch.zeros(1)}
    with pytest.raises(SkipwayError) as error:
        skipway.load_torchvision_state_dict(ours, lacking)
    assert str(error.value) == (
        "state dict that does not fit resnet18: 1 names missing, 1 unexpected, "
        "for example layer4.1.conv2.weight, extra\n"
        "expected: that of torchvision.models.resnet18"
    )
    with pytest.raises(SkipwayError) as error:
        skipway.load_torchvision_state_dict(skipway.create_model("resnet18", num_classes=10), state)
    assert str(error.value) == (
        "fc.weight has shape (1000, 512)\n"
        "expected: (10, 512), that of head.fc.weight\n"
        "try: create_model('resnet18', num_classes=1000)"
    )
    with pytest.raises(SkipwayError, match=r"^torchvision has no weights for 'resnet18@preact'"):
        skipway.load_torchvision_state_dict(skipway.create_model("resnet18@preact"), state)
    assert all(torch.equal(before[k], v) for k, v in ours.state_dict().items())


def test_older_state_dicts_count_no_batches() -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18(weights=None)
    randomise_(theirs)
    state = {k: v for k, v in theirs.state_dict().items() if not k.endswith("num_batches_tracked")}
    assert str(torchvision.models.resnet18(weights=None).load_state_dict(state)) == "<All keys matched successfully>"
    ours = skipway.create_model("resnet18")
    skipway.load_torchvision_state_dict(ours, state)
    assert_same(ours.eval(), theirs.eval(), 64)


def test_weights_of_the_depth_that_was_asked_for() -> None:
    ours = skipway.create_model("resnet18", depth=34)
    skipway.load_torchvision_state_dict(ours, torchvision.models.resnet34(weights=None).state_dict())
