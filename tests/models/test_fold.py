"""Folded models compute what the eval model computes, whatever the statistics; nothing else is folded."""

from __future__ import annotations

import hashlib
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import skipway
from designs.cases import PAIRS, batch_for, build
from skipway.designs import DESIGNS
from skipway.errors import SkipwayError
from skipway.models import FITS
from skipway.models.fold import Affine, fold

# Every design that fits images on a small net of basic blocks, and the options that move a norm or add a shortcut.
SMALL = [
    *(f"resnet20@{design}" for design in FITS["cifar_resnet"]),
    "resnet20@one_layer_skip(preact=true)", "resnet20@preact(shortcut=C)", "resnet164@preact", "resnet164@post_act",
    "densenet40_12@dense", "vit_tiny@pre_norm", "gpt_nano@post_norm", "mlp40@post_act",
]  # fmt: skip


def randomise_(model: nn.Module, gains: tuple[float, float] = (0.2, 1.7)) -> nn.Module:
    """Statistics and affines that no two channels share and none of which is the identity's; eval mode."""
    generator = torch.Generator().manual_seed(3)

    def uniform(like: Tensor, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(like.shape, generator=generator, dtype=like.dtype)

    with torch.no_grad():
        for norm in model.modules():
            if not isinstance(norm, nn.modules.batchnorm._BatchNorm):
                continue
            if norm.running_mean is not None and norm.running_var is not None:
                norm.running_mean.copy_(uniform(norm.running_mean, -0.8, 0.8))
                norm.running_var.copy_(uniform(norm.running_var, 0.2, 2.2))
            if norm.affine:
                norm.weight.copy_(uniform(norm.weight, *gains))
                norm.bias.copy_(uniform(norm.bias, -0.8, 0.8))
    return model.eval()


def difference(a: nn.Module, b: nn.Module, x: Tensor) -> float:
    """The largest difference relative to the largest number."""
    with torch.no_grad():
        first, second = a(x), b(x)
    assert first.shape == second.shape
    assert first.dtype == second.dtype
    return float((first - second).abs().max() / first.abs().max())


def check(model: nn.Module, x: Tensor) -> nn.Module:
    """Fold in both precisions and compare."""
    randomise_(model)
    folded = fold(model)
    assert difference(model, folded, x) <= 1e-5
    model = randomise_(model.double())
    x = x.double() if x.is_floating_point() else x
    assert difference(model, fold(model), x) <= 1e-12
    return folded


def test_every_design_is_here() -> None:
    assert {name.partition("@")[2].partition("(")[0] for name in SMALL} == set(DESIGNS)


@pytest.mark.parametrize("name", SMALL)
def test_the_same_function(name: str) -> None:
    model = build(name)
    folded = check(model, batch_for(model))
    assert folded.folding.paths("kept") == ()
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in folded.modules())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PAIRS)
def test_the_same_function_everywhere(name: str) -> None:
    # A product of sixteen factors leaves the range of float64 with the others.
    model = randomise_(build(name).double(), gains=(0.02, 0.17) if "multiply" in name else (0.2, 1.7))
    x = batch_for(model)
    assert difference(model, fold(model), x.double() if x.is_floating_point() else x) <= 1e-12


def test_post_activation_folds_whole() -> None:
    folded = fold(build("resnet20@post_act(shortcut=B)"))
    assert len(folded.folding) == 15
    assert repr(folded.folding) == "Folding(15 of 15 batch norms into weights, 0 as affine, 0 kept)"
    lines = [str(norm) for norm in folded.folding]
    assert lines[0] == "stem.norm: into stem.conv"
    assert lines[2] == "stack.units.0.branches.0.norm2: into stack.units.0.branches.0.conv2"
    assert "stack.units.2.join.shortcut.norm1: into stack.units.2.join.shortcut.proj1" in lines
    assert isinstance(folded.stem.norm, nn.Identity)


def test_preactivation_keeps_an_affine_between_stream_and_relu() -> None:
    folded = fold(build("resnet20@preact"))
    # The stem brings the first unit's activation; the second unit starts with its own.
    assert folded.folding.paths("affine") == (
        *(f"stack.units.{i}.branches.0.norm1" for i in range(1, 6)), "stack.exit.norm1",
    )  # fmt: skip
    assert isinstance(folded.get_submodule("stack.units.1.branches.0.norm1"), Affine)
    assert isinstance(folded.get_submodule("stack.units.1.branches.0.norm2"), nn.Identity)
    assert repr(folded.folding) == "Folding(7 of 13 batch norms into weights, 6 as affine, 0 kept)"
    assert str(next(n for n in folded.folding if n.form == "affine")) == "stack.units.1.branches.0.norm1: affine"


def test_the_norm_behind_the_addition_is_an_affine() -> None:
    folded = fold(build("resnet20@bn_after_add"))
    assert folded.folding.paths("affine") == tuple(f"stack.units.{i}.join.after.norm1" for i in range(6))


def state_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def test_the_model_stays_as_it_was() -> None:
    model = build("resnet20@preact").train()
    before, text = state_hash(model), repr(model)
    folded = fold(model)
    for parameter in folded.parameters():
        parameter.data.fill_(7.0)
    assert state_hash(model) == before
    assert repr(model) == text
    assert not hasattr(model, "folding")
    assert all(m.training for m in model.modules())
    assert not any(m.training for m in folded.modules())


@pytest.mark.parametrize("name", ["resnet20@preact", "resnet164@dense", "resnet20@bn_after_add"])
def test_paths_stay_and_the_state_fits_a_twin(name: str) -> None:
    model, twin = randomise_(build(name)), fold(build(name, seed=1))
    folded = fold(model)
    assert {path for path, _ in folded.named_modules()} == {path for path, _ in model.named_modules()}
    x = batch_for(model)
    assert difference(folded, twin, x) > 1e-3
    twin.load_state_dict(folded.state_dict())
    assert difference(folded, twin, x) == 0
    assert len(fold(folded).folding.norms) == 0
    assert difference(folded, fold(folded), x) == 0


def test_features_stacks_and_units() -> None:
    x = torch.randn(2, 3, 16, 16)
    features = skipway.create_model("resnet20", width=8, depth=8, features_only=True)
    randomise_(features.double())
    with torch.no_grad():
        maps = zip(features(x.double()), fold(features)(x.double()), strict=True)
    assert all(float((a - b).abs().max()) <= 1e-12 * float(a.abs().max()) for a, b in maps)

    def branch() -> nn.Module:
        inner = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())
        return nn.Sequential(inner, nn.Conv2d(5, 3, 1), nn.BatchNorm2d(3))

    stack = check(skipway.Stack([branch(), branch()], "post_act"), x)
    assert len(stack.folding) == 4
    unit = check(skipway.Unit(branch(), "preact"), x)
    assert [n.form for n in unit.folding] == ["affine", "before", "before"]
    shortcut = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    unit = check(skipway.Unit(nn.Conv2d(3, 4, 3, padding=1), "post_act", shortcut=shortcut), x)
    assert unit.folding.norms[0].into == "join.shortcut.0"


@pytest.mark.parametrize(
    ("conv", "form"),
    [
        (nn.Conv2d(6, 6, 1), "behind"),
        (nn.Conv2d(6, 6, 1, bias=False, groups=3), "behind"),
        (nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular", groups=2), "behind"),
        (nn.Conv2d(6, 6, 1, padding="valid"), "behind"),
        (nn.Conv2d(6, 6, 3, padding=1), "affine"),
        (nn.Conv2d(6, 6, 3, padding="same"), "affine"),
    ],
)
def test_a_norm_before_a_convolution_goes_into_it_unless_zeros_are_padded(conv: nn.Conv2d, form: str) -> None:
    unit = check(skipway.Unit(conv, "preact", act="none"), torch.randn(2, 6, 5, 7))
    assert [norm.form for norm in unit.folding] == [form]


def test_two_norms_behind_one_convolution() -> None:
    branch = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False))
    unit = check(skipway.Unit(branch, "post_act"), torch.randn(2, 4, 5, 5))
    assert [norm.form for norm in unit.folding] == ["before", "before"]


class Own(nn.Module):
    """A branch whose forward runs its layers in another order than it lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.conv2 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv2(self.conv(x)))
        return y


class OddNorm(nn.BatchNorm2d):
    """Adds one."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name
        return super().forward(input) + 1


def test_what_is_not_known_is_kept() -> None:
    norms = (nn.BatchNorm2d(4, track_running_stats=False), OddNorm(4))
    branch = nn.Sequential(Own(), nn.Conv2d(4, 4, 1), norms[0], nn.Conv2d(4, 4, 1), norms[1])
    unit = check(skipway.Unit(branch, "post_act"), torch.randn(3, 4, 5, 5))
    assert [str(norm) for norm in unit.folding] == [
        "branches.0.0.norm: kept, in a module with a forward of its own",
        "branches.0.2: kept, without running statistics it normalises by the batch in eval mode too",
        "branches.0.4: kept, a OddNorm may do more than a batch norm",
    ]


def test_what_is_used_twice_is_not_folded() -> None:
    x = torch.randn(2, 4, 5, 5)
    conv, norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
    tied = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
    tied[3].weight = tied[0].weight
    twice = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    for branch in (
        nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), conv, nn.BatchNorm2d(4)),
        nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.ReLU(), nn.Conv2d(4, 4, 1), norm),
        nn.Sequential(nn.Conv2d(4, 4, 1), twice, nn.Conv2d(4, 4, 3, padding=1), twice),
        tied,
    ):
        unit = check(skipway.Unit(branch, "post_act"), x)
        assert len(unit.folding) == 0
    shared = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    assert len(check(skipway.Stack([shared, shared], "post_act"), x).folding) == 0


def test_weights_that_are_computed_take_nothing_in() -> None:
    convs = [parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), prune.random_unstructured(nn.Conv2d(4, 4, 1), "bias", 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates the older one, which is still in use
        convs.append(torch.nn.utils.weight_norm(nn.Conv2d(4, 4, 1)))
    for conv in convs:
        for branch in (nn.Sequential(conv, nn.BatchNorm2d(4)), nn.Sequential(nn.BatchNorm2d(4), conv)):
            unit = skipway.Unit(branch, "post_act", in_width=4, out_width=4, layout="NCHW")
            with torch.no_grad():
                unit(torch.randn(2, 4, 5, 5))
            assert unit_forms(unit) == ["affine"]


def unit_forms(unit: nn.Module) -> list[str]:
    randomise_(unit)
    folded = fold(unit)
    assert difference(unit, folded, torch.randn(2, 4, 5, 5)) <= 1e-6
    return [norm.form for norm in folded.folding]


def test_linear_layers_take_nothing_in() -> None:
    # BatchNorm1d reads the channels of (N,C) and of (N,C,L) in dimension 1; the layer writes the last one.
    branch = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
    unit = check(skipway.Unit(branch, "post_act"), torch.randn(3, 4))
    assert [norm.form for norm in unit.folding] == ["affine"]
    assert (
        difference(randomise_(unit := skipway.Unit(branch.float(), "post_act")), fold(unit), torch.randn(3, 4, 4))
        < 1e-6
    )


def test_layer_norms_stay() -> None:
    model = build("vit_tiny@pre_norm")
    assert repr(fold(model)) == repr(model.eval())


def test_an_affine_keeps_type_and_layout() -> None:
    affine = Affine(torch.rand(6) + 0.5, torch.randn(6))
    x = torch.randn(2, 6, 5, 4)
    scale, shift = affine.scale.view(6, 1, 1), affine.shift.view(6, 1, 1)
    with torch.no_grad():
        for given in (x, x.contiguous(memory_format=torch.channels_last)):
            y = affine(given)
            torch.testing.assert_close(y, x * scale + shift)
            assert y.stride() == given.stride()
        assert affine(x.bfloat16()).dtype == torch.bfloat16
        torch.testing.assert_close(affine(x[:, :, 0, 0]), x[:, :, 0, 0] * affine.scale + affine.shift)
    assert repr(affine) == "Affine(6)"


@pytest.mark.exhaustive
def test_a_folded_net_compiles_as_one_graph() -> None:
    folded = fold(randomise_(skipway.create_model("resnet20@preact", depth=8, width=4)))
    compiled = torch.compile(folded, backend="eager", fullgraph=True)
    assert difference(folded, compiled, torch.randn(2, 3, 8, 8)) <= 1e-6


def test_other_models_are_refused() -> None:
    with pytest.raises(SkipwayError) as refused:
        fold(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    assert str(refused.value) == (
        "fold on a Sequential, whose order of layers is not known\n"
        "expected: a model that skipway built: a net of create_model, a Stack or a Unit\n"
        'try: skipway.fold(skipway.create_model("resnet20"))'
    )
