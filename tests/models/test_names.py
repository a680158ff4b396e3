# ruff: noqa: E501 (messages stand here whole, as they are printed)
"""Names of models and designs: what they mean, and what is said to one that means nothing."""

from __future__ import annotations

import fnmatch

import pytest
import torch

import skipway
from skipway.blocks import AttentionBlock
from skipway.designs import DESIGNS, DesignInfo, design_from
from skipway.designs.exclusive_gate import ExclusiveGate
from skipway.designs.post_act import PostAct
from skipway.errors import SkipwayError, UnknownNameError
from skipway.models import FITS, parse_name
from skipway.models.zoo import backbone


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resent20", "unknown model 'resent20'\nexpected: did you mean 'resnet20' or 'resnet200' or 'resnet1202'?"),
        ("resnet39", "no resnet of depth 39\nexpected: 6n+2 (basic) or 9n+2 (bottleneck) layers, or 18, 34, 50, 101, 152, 200\ntry: resnet38 or resnet44"),
        ("plain57", "no plain of depth 57\nexpected: 6n+2 layers\ntry: plain56 or plain62"),
        ("resnet3", "no resnet of depth 3\nexpected: 6n+2 (basic) or 9n+2 (bottleneck) layers, or 18, 34, 50, 101, 152, 200\ntry: resnet8"),
        ("resnet20@preakt", "unknown design 'preakt'\nexpected: did you mean 'preact'?"),
        ("resnet20@", "no design behind '@' in 'resnet20@'\nexpected: BACKBONE@DESIGN(key=value,…)\ntry: resnet20"),
        ("resnet20@exclusive_gate(bais=-6)", "unknown option of design 'exclusive_gate' 'bais'\nexpected: did you mean 'bias'?"),
        ("resnet20@exclusive_gate(bias=low)", "option bias=low of design 'exclusive_gate'\nexpected: a number\ntry: exclusive_gate(bias=-6.0)"),
        ("resnet20@post_act(shortcut=D)", "option shortcut=D of design 'post_act'\nexpected: auto|A|B|C\ntry: post_act(shortcut=auto)"),
        ("resnet20@post_act(zero_init=1)", "option zero_init=1 of design 'post_act'\nexpected: true or false\ntry: post_act(zero_init=False)"),
        ("densenet121@dense(growth=1.5)", "option growth=1.5 of design 'dense'\nexpected: a whole number\ntry: dense(growth=0)"),
        ("resnet20@scaled(lam)", "not an option: 'lam' in 'scaled(lam)'\nexpected: key=value\ntry: scaled(lam=0.5,mu=0.5)"),
        ("resnet20@scaled(lam=1,lam=2)", "option 'lam' given twice in 'scaled(lam=1,lam=2)'\nexpected: each option once"),
        ("resnet20@scaled(lam=0)", "scaled with lam=0 has no shortcut\nexpected: lam other than 0\ntry: the design plain"),
        ("resnet20@scaled(", "not a design: 'scaled('\nexpected: DESIGN or DESIGN(key=value,…)\ntry: scaled(lam=0.5,mu=0.5)"),
        ("vit_tiny@preact", "design 'preact' does not fit 'vit_tiny'\nexpected: one of: dense, exclusive_gate, highway, mean, momentum, multiply, plain, post_act, post_norm, pre_norm, revnet, scaled, shortcut_gate\ntry: vit_tiny@dense"),
        ("plain56@preact", "design 'preact' does not fit 'plain56'\nexpected: one of: plain\ntry: resnet56@preact"),
        ("mlp0", "mlp of depth 0\nexpected: 1 or more layers\ntry: mlp40"),
    ],
)  # fmt: skip
def test_messages(name: str, message: str) -> None:
    with pytest.raises(SkipwayError) as error:
        skipway.create_model(name)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "block", "units", "design"),
    [
        ("resnet38", "basic", 18, PostAct()),
        ("resnet110", "basic", 54, PostAct()),
        ("resnet164", "bottleneck", 54, PostAct()),
        ("resnet29", "bottleneck", 9, PostAct()),
        ("resnet110@exclusive_gate( bias = -2 )", "basic", 54, ExclusiveGate(bias=-2.0)),
    ],
)
def test_what_names_mean(name: str, block: str, units: int, design: object) -> None:
    net, chosen = parse_name(name)
    assert (net.block, len(net.sites()), chosen) == (block, units, design)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "design", "shortcut"),
    [
        ("resnet20", "post_act", "A"), ("resnet1202", "post_act", "A"), ("resnet164", "post_act", "B"),
        ("resnet1001", "post_act", "B"), ("resnet50", "post_act", "B"), ("plain110", "plain", "A"),
        ("wrn28_10", "preact", "B"), ("densenet121", "dense", ""), ("vit_tiny", "pre_norm", ""),
        ("gpt_nano", "pre_norm", ""), ("bert_nano", "post_norm", ""), ("mlp40", "post_act", ""),
    ],
)  # fmt: skip
def test_published_defaults(name: str, design: str, shortcut: str) -> None:
    net, chosen = parse_name(name)
    assert (chosen.id, net.sites()[0].shortcut) == (design, shortcut)


def test_resnet50_has_its_stride_on_the_3x3() -> None:
    blocks = [site.block for site in backbone("resnet50").sites()]
    assert [conv.stride for conv in blocks[3].convs] == [1, 2, 1]  # type: ignore[attr-defined]


def test_lists() -> None:
    names = skipway.list_models()
    assert {"plain56", "resnet1202", "resnet50", "densenet40_12", "wrn28_10", "vit_tiny", "gpt_nano", "mlp40"} <= set(
        names
    )
    assert skipway.list_models("vit*") == ["vit_tiny", "vit_small_patch16_224"]
    pairs = skipway.list_models("*@*")
    assert len(pairs) == sum(len(FITS[backbone(name).family]) for name in names)
    assert all(fnmatch.fnmatchcase(name, "resnet20@*") for name in skipway.list_models("resnet20@*"))
    assert skipway.list_designs("*_gate") == ["exclusive_gate", "shortcut_gate"]


def test_the_table_names_designs_that_exist_and_every_design_is_in_it() -> None:
    named = {design for fits in FITS.values() for design in fits}
    assert named == set(DESIGNS)
    for fits in FITS.values():
        assert list(fits) == sorted(set(fits))


@pytest.mark.parametrize("design", DESIGNS)
def test_records_of_designs(design: str) -> None:
    info = DesignInfo.of(DESIGNS[design])
    assert info.id == design
    assert info.summary.endswith((".", ";")) or info.summary
    assert "x' = " in info.equation or info.equation.startswith("y1 = ")  # of two streams, as their paper has it
    assert "arXiv" in info.citation or design == "multiply"
    assert all(option.help for option in info.options)
    for option in info.options:
        text = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
        assert design_from(f"{design}({option.name}={text})") == DESIGNS[design]()


def test_arguments_without_use_are_refused() -> None:
    with pytest.raises(SkipwayError, match="in_channels or image_size for gpt_nano"):
        skipway.create_model("gpt_nano", in_channels=3)
    with pytest.raises(SkipwayError, match="image_size for mlp40"):
        skipway.create_model("mlp40", image_size=8)
    with pytest.raises(SkipwayError, match="out_indices without features_only"):
        skipway.create_model("resnet20", out_indices=(1,))
    with pytest.raises(UnknownNameError, match="did you mean 'recompute'"):
        skipway.create_model("resnet20", memory="recomputed")  # type: ignore[call-overload]
    with pytest.raises(SkipwayError, match="resnet of depth 51"):
        skipway.create_model("resnet50", depth=51)
    with pytest.raises(SkipwayError, match="images of 33 pixels in patches of 4"):
        skipway.create_model("vit_tiny", image_size=33)
    with pytest.raises(SkipwayError, match="5 heads for width 24"):
        AttentionBlock(reads=24, writes=24, width=24, heads=5)


def test_depth_and_width() -> None:
    with torch.device("meta"):
        assert len(skipway.create_model("resnet164", depth=20).stack.units) == 6
        assert len(skipway.create_model("resnet20", depth=50).stack.units) == 24
        assert len(skipway.create_model("resnet50", depth=101).stack.units) == 33
        assert len(skipway.create_model("bert_nano", depth=60).stack.units) == 120
        assert skipway.create_model("resnet50", width=8).num_features == 256
        assert skipway.create_model("mlp40", depth=3, width=32, in_channels=7)(
            torch.randn(2, 7, device="meta")
        ).shape == (2, 10)


def test_wrong_inputs_of_stems() -> None:
    with pytest.raises(SkipwayError) as error:
        skipway.create_model("vit_tiny", depth=1)(torch.randn(1, 3, 28, 28))
    assert str(error.value) == "images of (28, 28) pixels\nexpected: (32, 32)\ntry: create_model(…, image_size=28)"
    gpt = skipway.create_model("gpt_nano", depth=1)
    with pytest.raises(SkipwayError, match=r"^300 tokens\nexpected: at most 256"):
        gpt(torch.zeros(1, 300, dtype=torch.int64))
    with pytest.raises(SkipwayError, match=r"^input float32 \(1, 8\)\nexpected: integer token ids \(N, T\)$"):
        gpt(torch.randn(1, 8))


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "depth", "expected"),
    [
        ("resnet18", 34, "resnet34"), ("resnet18", 50, "resnet50"), ("resnet50@preact", 101, "resnet101@preact"),
        ("resnet20", 56, "resnet56"), ("resnet20", 164, "resnet164"), ("resnet20", 29, "resnet29"),
        ("resnet20@exclusive_gate(bias=-2)", 38, "resnet38@exclusive_gate(bias=-2)"), ("plain20", 56, "plain56"),
        ("mlp40", 3, "mlp3"), ("resnet1001", 164, "resnet164"),
    ],
)  # fmt: skip
def test_a_depth_means_what_it_means_in_a_name(name: str, depth: int, expected: str) -> None:
    with torch.device("meta"):
        model, named = skipway.create_model(name, depth=depth), skipway.create_model(expected)
        assert model.name == expected == named.name
        assert model.default_cfg == named.default_cfg
        assert {k: v.shape for k, v in model.state_dict().items()} == {
            k: v.shape for k, v in named.state_dict().items()
        }
        assert str(model.stack.units[0].form) == str(named.stack.units[0].form)


@pytest.mark.parametrize(
    ("name", "depth"),
    [("resnet20", 50), ("resnet164", 20), ("wrn28_10", 16), ("gpt_nano", 2), ("densenet40_12@dense", 10)],
)
def test_nets_without_a_name_of_their_depth_keep_theirs(name: str, depth: int) -> None:
    with torch.device("meta"):
        model = skipway.create_model(name, depth=depth)
    assert (model.name, model.default_cfg["architecture"]) == (name, name.partition("@")[0])


@pytest.mark.parametrize(
    ("name", "depth", "hint"),
    [
        ("wrn28_10", 20, "depth=16 or depth=22"), ("densenet40_12", 41, "depth=40 or depth=43"),
        ("densenet121", 100, "depth=121"), ("resnet50", 51, "resnet50 or resnet101"), ("resnet20", 18, "depth=14 or depth=20"),
        ("resnet20", 39, "resnet38 or resnet44"), ("plain20", 57, "plain56 or plain62"),
    ],
)  # fmt: skip
def test_depths_that_do_not_fit_name_what_can_be_typed(name: str, depth: int, hint: str) -> None:
    with pytest.raises(SkipwayError) as error:
        skipway.create_model(name, depth=depth)
    assert error.value.hint == hint


def test_wide_resnets_have_sixteen_channels_behind_the_stem() -> None:
    # Table 1 of arXiv 1605.07146; parameters counted by hand from it, WRN-10-1 and WRN-10-4.
    def counted(k: int) -> int:
        total, width = 3 * 16 * 9, 16
        for wide in (16 * k, 32 * k, 64 * k):
            total += 2 * width + 9 * width * wide + 2 * wide + 9 * wide * wide + (width * wide if wide != width else 0)
            width = wide
        return total + 2 * width + 10 * width + 10

    for k in (1, 4):
        model = skipway.create_model("wrn28_10", depth=10, width=16 * k)
        assert model.get_submodule("stem.conv").out_channels == 16
        # A first unit that does not project has its norm behind the stem, as any first one.
        assert parameters(model) == counted(k)


@pytest.mark.parametrize(("name", "width"), [("densenet40_12", 24), ("densenet121", 16)])
def test_densenets_of_another_width_append_as_many_channels(name: str, width: int) -> None:
    with torch.device("meta"):
        net, model = backbone(name), skipway.create_model(name, width=width)
    units = model.stack.built_units()
    assert {unit.plan.branches[0].block.out_width for unit in units} == {width}
    assert model.get_submodule("stem.conv").out_channels == net.stem_width * width // net.growth  # type: ignore[attr-defined]
