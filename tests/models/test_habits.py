"""timm's habits: features, classifier, checkpointing, configuration."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn

import skipway
from skipway.errors import SkipwayError


@pytest.mark.parametrize(
    ("name", "kwargs", "shapes", "reduction"),
    [
        ("resnet20", {}, [(2, 16, 32, 32), (2, 32, 16, 16), (2, 64, 8, 8)], [1, 2, 4]),
        ("resnet20@preact", {}, [(2, 16, 32, 32), (2, 32, 16, 16), (2, 64, 8, 8)], [1, 2, 4]),
        ("resnet50", {"width": 8}, [(2, 32, 8, 8), (2, 64, 4, 4), (2, 128, 2, 2), (2, 256, 1, 1)], [4, 8, 16, 32]),
        ("densenet40_12", {"depth": 10}, [(2, 40, 32, 32), (2, 64, 16, 16), (2, 88, 8, 8)], [1, 2, 4]),
        ("vit_tiny", {"width": 24}, [(2, 65, 24)] * 4, [4, 4, 4, 4]),
    ],
)
def test_features_only(name: str, kwargs: dict[str, int], shapes: list[object], reduction: list[int]) -> None:
    model = skipway.create_model(name, features_only=True, **kwargs)  # type: ignore[call-overload]
    maps = model(torch.randn(2, 3, 32, 32))
    assert [tuple(m.shape) for m in maps] == shapes
    assert model.feature_info.channels() == [m.shape[1] if m.dim() == 4 else m.shape[2] for m in maps]
    assert model.feature_info.reduction() == reduction
    sum(m.sum() for m in maps).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_features_are_those_of_the_whole_model() -> None:
    torch.manual_seed(0)
    whole = skipway.create_model("resnet20").eval()
    torch.manual_seed(0)
    part = skipway.create_model("resnet20", features_only=True, out_indices=(0, 2)).eval()
    x = torch.randn(1, 3, 32, 32)
    maps = part(x)
    torch.testing.assert_close(maps[-1], whole.forward_features(x), rtol=0, atol=0)
    assert part.feature_info.module_name() == ["stack.units.2", "stack.units.8"]
    with pytest.raises(SkipwayError, match=r"out_indices \[3\] of resnet20\nexpected: stages from 0 to 2"):
        skipway.create_model("resnet20", features_only=True, out_indices=(3,))


def test_channels_of_feature_maps_are_timms() -> None:
    theirs = timm.create_model("resnet50", features_only=True, pretrained=False, out_indices=(1, 2, 3, 4))
    ours = skipway.create_model("resnet50", features_only=True)
    assert ours.feature_info.channels() == theirs.feature_info.channels()
    assert ours.feature_info.reduction() == theirs.feature_info.reduction()


@pytest.mark.parametrize("name", ["resnet20", "vit_tiny", "gpt_nano", "bert_nano", "mlp40"])
def test_classifier(name: str) -> None:
    model = skipway.create_model(name, depth=20 if name == "resnet20" else 2)
    x = model.dummy_input()
    assert model(x).shape[-1] == model.num_classes == model.default_cfg["num_classes"]
    assert model.get_classifier() is model.get_submodule(model.default_cfg["classifier"])
    model.double()
    model.reset_classifier(7)
    y = model(x if x.dtype == torch.int64 else x.double())
    assert (y.shape[-1], model.num_classes, y.dtype) == (7, 7, torch.float64)
    model.reset_classifier(0)
    features = model.forward_features(x if x.dtype == torch.int64 else x.double())
    pooled = model.forward_head(features, pre_logits=True)
    torch.testing.assert_close(model.forward_head(features), pooled)
    assert pooled.shape[-1] == model.num_features
    with pytest.raises(SkipwayError, match="-1 classes"):
        model.reset_classifier(-1)


def test_pooling_that_does_not_fit() -> None:
    model = skipway.create_model("resnet20")
    with pytest.raises(SkipwayError, match="pooling 'first' instead of 'average'"):
        model.reset_classifier(5, "first")
    vit = skipway.create_model("vit_tiny", depth=1)
    vit.reset_classifier(5, "all")
    assert vit(torch.randn(1, 3, 32, 32)).shape == (1, 65, 5)


def test_first_conv_of_the_configuration() -> None:
    for name in ("resnet20", "resnet18", "vit_tiny"):
        model = skipway.create_model(name, in_channels=1)
        first = model.get_submodule(model.default_cfg["first_conv"])
        assert isinstance(first, nn.Conv2d)
        assert model.default_cfg["input_size"][0] == first.in_channels == 1


@pytest.mark.parametrize("name", ["resnet20", "resnet20@preact", "resnet20@dropout_shortcut", "gpt_nano"])
def test_recomputing_changes_nothing_but_memory(name: str) -> None:
    torch.manual_seed(0)
    plain = skipway.create_model(name)
    again = copy.deepcopy(plain)
    again.set_grad_checkpointing()
    x = plain.dummy_input(4)
    results = []
    for model in (plain, again):
        torch.manual_seed(1)
        loss = model(x).square().mean()
        loss.backward()
        results.append((loss, [p.grad for p in model.parameters()], dict(model.named_buffers())))
    torch.testing.assert_close(results[0], results[1])
    if "resnet" in name:
        # PyTorch's checkpoint alone counts each batch twice.
        assert again.stem.norm.num_batches_tracked == 1  # type: ignore[union-attr]
        assert again.stack.units[0].branches[0].norm1.num_batches_tracked == 1  # type: ignore[index]


def test_cost_is_linear_in_depth() -> None:
    def operations(depth: int) -> int:
        from torch.utils.flop_counter import FlopCounterMode

        with torch.device("meta"):
            model = skipway.create_model("resnet20", depth=depth)
            with FlopCounterMode(display=False) as counter:
                model(torch.randn(1, 3, 32, 32))
        return counter.get_total_flops()

    a, b, c = (operations(d) for d in (20, 38, 56))
    assert c - b == b - a > 0


@pytest.mark.parametrize("name", ["resnet8@preact", "resnet8@revnet", "gpt_nano"])
def test_features_of_a_net_leave_it_whole(name: str) -> None:
    net = skipway.create_model(name).eval()
    x = net.dummy_input()
    before, modules = net(x), [path for path, _ in net.named_modules()]
    part = skipway.FeatureNet(net, reduction=1, out_indices=(0,))
    assert [path for path, _ in net.named_modules()] == modules
    torch.testing.assert_close(net(x), before, rtol=0, atol=0)
    assert len(part.stack.units) < len(net.stack.units)
    assert all(any(p is q for q in net.parameters()) for p in part.parameters())
    assert not part.stack.training
    torch.testing.assert_close(part(x)[0], net.stack.run(net.stem(x), (len(part.stack.units) - 1,))[1][0])


def test_features_of_no_stage() -> None:
    with pytest.raises(SkipwayError, match=r"^out_indices=\(\) of resnet8\nexpected: one or more stages from 0 to 2$"):
        skipway.create_model("resnet8", features_only=True, out_indices=())


def test_only_a_tied_classifier_is_without_bias() -> None:
    gpt = skipway.create_model("gpt_nano", depth=1, width=16)
    assert gpt.head.fc.bias is None
    gpt.reset_classifier(10)
    assert gpt.head.fc.bias is not None
    assert skipway.create_model("gpt_nano", depth=1, width=16, num_classes=10).head.fc.bias is not None
    gpt.reset_classifier(256)
    assert gpt.head.fc.bias is None


@pytest.mark.parametrize("name", ["resnet8", "gpt_nano"])
def test_a_dummy_input_goes_where_the_weights_are(name: str) -> None:
    model = skipway.create_model(name).double()
    assert model(model.dummy_input()).dtype == torch.float64
    assert model.to("meta").dummy_input().device.type == "meta"
    torch.manual_seed(0)
    image = skipway.create_model("resnet8").dummy_input()
    torch.manual_seed(0)
    skipway.create_model("resnet8")
    assert torch.equal(image, torch.randn(2, 3, 32, 32))
