"""The contract that every design keeps on every backbone of the table."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import skipway
from designs.cases import EACH, PAIRS, QUICK, REPRESENTATIVES, SMALL, batch_for, build, listed_pairs
from skipway.models import FITS, parse_name
from skipway.models.create import build as build_from
from skipway.models.zoo import LISTED, backbone

if TYPE_CHECKING:
    from skipway.models import Net


@cache
def built(name: str) -> Net:
    """The small model of that name, for tests that look at what it is made of."""
    return build(name)


def test_every_listed_backbone_is_represented() -> None:
    assert set(REPRESENTATIVES) == set(LISTED)
    assert set(REPRESENTATIVES.values()) == set(SMALL)
    for name, small in REPRESENTATIVES.items():
        a, b = backbone(name), backbone(small)
        assert a.family == b.family or name.startswith("densenet")
        assert getattr(a, "block", "") == getattr(b, "block", "")


@pytest.mark.parametrize("name", EACH)
def test_runs_and_leaves_its_input_alone(name: str) -> None:
    model = build(name)
    x = batch_for(model)
    kept = x.clone()
    for mode in (True, False):
        y = model.train(mode)(x)
        assert y.shape[0] == x.shape[0]
        assert y.shape[-1] == model.num_classes
        assert (y.dtype, y.device) == (torch.float32, x.device)
        assert torch.equal(x, kept)
    half = build(name).to(torch.bfloat16)
    assert half(x if x.dtype == torch.int64 else x.to(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", EACH)
def test_runs_without_numbers(name: str) -> None:
    x = batch_for(built(name))
    with torch.device("meta"):
        assert build(name)(x.to("meta")).device.type == "meta"


@pytest.mark.parametrize("name", EACH)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build(name)
    x = batch_for(model)
    y = model(x)
    (y * torch.randn_like(y)).sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("name", EACH)
def test_same_seed_same_output_and_state_dict_round_trip(name: str) -> None:
    model, twin, other = build(name), build(name), build(name, seed=7)
    x = batch_for(model)
    torch.manual_seed(3)
    y = model(x)
    torch.manual_seed(3)
    assert torch.equal(y, twin(x))
    torch.manual_seed(3)
    assert not torch.equal(y, other(x))
    state = model.state_dict()
    other.load_state_dict(state)
    assert all(torch.equal(state[k], v) for k, v in other.state_dict().items())
    torch.testing.assert_close(other.eval()(x), model.eval()(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", EACH)
def test_claims(name: str) -> None:
    model = built(name)
    design, units = model.design, model.stack.built_units()
    claims = design.claims()
    base = name.partition("@")[0]
    net = backbone(base)
    sites = net.with_depth(SMALL[base].get("depth", net.depth)).sites()
    layers = sum(len(getattr(site.block, "convs", "x")) for site in sites)
    assert len(units) == (layers if design.id == "one_layer_skip" else len(sites))
    model.train()
    for unit in units:
        block = unit.plan.branches[0].block
        if claims.identity_at_init and not unit.plan.site.changes_shape:
            # The stream is not negative where a ReLU follows the addition.
            shape = (2, block.in_width, 6, 6) if block.layout == "NCHW" else (2, 5, block.in_width)
            x = torch.rand(shape)
            torch.testing.assert_close(unit(x), x, rtol=0, atol=0)


@pytest.mark.parametrize("name", EACH)
def test_extra_parameters(name: str) -> None:
    base = name.partition("@")[0]
    net, design = parse_name(name)
    small = {k: v for k, v in SMALL[base].items() if k in ("depth", "width")}
    net = net.with_depth(small.get("depth", net.depth)).with_width(small.get("width", 8))
    extra = design.extra_parameters(net.sites())
    if extra is None:
        assert design.id in {"dense", "pre_norm", "post_norm"}
        return
    assert sum(p.numel() for p in build_from(net, design, name=base).parameters()) - plain_count(base) == extra


@cache
def plain_count(base: str) -> int:
    """Parameters of the small backbone without shortcuts."""
    net, plain = parse_name(f"{base}@plain")
    net = net.with_depth(SMALL[base].get("depth", net.depth)).with_width(SMALL[base].get("width", 8))
    return sum(p.numel() for p in build_from(net, plain, name=base).parameters())


@pytest.mark.parametrize("backbone_name", ["gpt_nano", "bert_nano", "vit_tiny"])
def test_parameters_of_norm_placements(backbone_name: str) -> None:
    net, _ = parse_name(backbone_name)
    net = net.with_depth(2).with_width(24)

    def count(design: str) -> int:
        chosen = parse_name(f"{backbone_name}@{design}")[1]
        return sum(p.numel() for p in build_from(net, chosen, name=backbone_name).parameters())

    d = 24
    assert count("pre_norm") - count("post_norm") == 2 * d  # the final norm
    assert count("pre_norm") - count("pre_norm(norm=rms)") == 5 * d  # no shifts
    assert count("pre_norm") == count("plain") == count("post_act")


@pytest.mark.parametrize(
    "name",
    [
        # Each design where it is traced in the shortest time; some of each kind of state on other nets too.
        *(f"resnet20@{design}" for design in FITS["cifar_resnet"] if design not in FITS["mlp"]),
        *(f"mlp40@{design}" for design in FITS["mlp"]),
        *(f"{base}@{design}" for base in ("resnet20", "gpt_nano") for design in ("post_act", "dense", "revnet")),
        "gpt_nano@pre_norm", "gpt_nano@post_norm", "resnet164@preact", "vit_tiny@pre_norm",
    ],
)  # fmt: skip
def test_compiles_to_one_graph(name: str) -> None:
    _compiles(name, "eager")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PAIRS)
def test_compiles_to_one_graph_everywhere(name: str) -> None:
    _compiles(name, "eager")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["resnet20@post_act", "resnet20@preact", "resnet20@dense", "gpt_nano@pre_norm", "mlp40@highway"]
)
def test_inductor(name: str) -> None:
    _compiles(name, "inductor")


def _compiles(name: str, backend: str) -> None:
    torch._dynamo.reset()
    model = build(name)
    x = batch_for(model)
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    torch.manual_seed(3)
    expected = model(x)
    if backend == "inductor":  # its random numbers are its own
        model.eval()
        expected = model(x)
    torch.manual_seed(3)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if backend == "inductor" else {}
    torch.testing.assert_close(compiled(x), expected, **tolerance)


def _depths() -> list[str]:
    # 1,202 layers of these cost hundreds of megabytes of activations each: their smaller kin are run instead.
    heavy = {"resnet1202@dense", "resnet1001@dense", "resnet200@dense"}
    return [name for name in listed_pairs() if name not in heavy]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", _depths())
def test_every_listed_depth(name: str) -> None:
    base = name.partition("@")[0]
    width = {"cifar": 4, "image": 8}.get(backbone(base).family[:5])
    torch.manual_seed(0)
    model = skipway.create_model(name, width=width) if width else skipway.create_model(name)
    y = model(batch_for(model, 2))
    y.square().sum().backward()
    assert y.shape[-1] == model.num_classes
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    "name",
    [
        "resnet200@dense",
        *(pytest.param(f"resnet{depth}@dense", marks=pytest.mark.exhaustive) for depth in (1001, 1202)),
    ],
)
def test_heavy_nets_at_least_build(name: str) -> None:
    with torch.device("meta"):
        assert skipway.create_model(name, width=8)(torch.randn(2, 3, 32, 32)).device.type == "meta"


@pytest.mark.parametrize("name", EACH)
def test_in_place_operations_never_reach_the_stream(name: str) -> None:
    # A leading in-place ReLU would rewrite what the shortcut reads.
    for unit in built(name).stack.built_units():
        for branch in unit.branches:
            first = next(iter(branch.children()), branch)
            assert not (isinstance(first, nn.ReLU) and first.inplace)
        shared = getattr(unit.join, "shared", None)
        assert not (isinstance(shared, nn.ReLU) and shared.inplace)


@pytest.mark.parametrize("name", EACH)
def test_forms_differ_between_modes_only_by_dropout(name: str) -> None:
    for unit in built(name).stack.built_units():
        train, evaluated = unit.plan.forms["train"], unit.plan.forms["eval"]
        if train != evaluated:
            assert "dropout" in name
        assert unit.train().form is train
        assert unit.eval().form is evaluated


def test_what_is_quick_has_every_design_and_every_backbone() -> None:
    every, quick = ({(backbone(n.partition("@")[0]).family, parse_name(n)[1].id) for n in of} for of in (PAIRS, QUICK))
    assert {design for _, design in quick} == {design for _, design in every}
    assert {name.partition("@")[0] for name in QUICK} == set(SMALL)
    whole = ("cifar_resnet", "gpt", "mlp")
    assert {pair for pair in quick if pair[0] in whole} == {pair for pair in every if pair[0] in whole}
