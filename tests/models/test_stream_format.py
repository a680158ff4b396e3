"""A stream in float32 whose branches run in 16 bits."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import skipway
from skipway.errors import SkipwayError
from skipway.models import FITS
from skipway.models.load_for import load_for_run
from skipway.spec import RunSpec

if TYPE_CHECKING:
    from pathlib import Path

BF16 = torch.autocast("cpu", torch.bfloat16)


def net(name: str = "resnet20@preact", **options: Any) -> skipway.models.net.Net:
    torch.manual_seed(0)
    model = skipway.create_model(name, image_size=8, **options)
    assert isinstance(model, skipway.models.net.Net)
    return model


def images(count: int = 4) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(count, 3, 8, 8)


def formats(model: skipway.models.net.Net) -> tuple[set[torch.dtype], set[torch.dtype]]:
    """Of the states behind the units, and of what the convolutions write, in one pass under autocast."""
    states: set[torch.dtype] = set()
    written: set[torch.dtype] = set()
    for unit in model.stack.units:
        unit.register_forward_hook(lambda _m, _i, out: states.update(t.dtype for t in tree_leaves(out)))
        for module in unit.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(lambda _m, _i, out: written.add(out.dtype))
    with BF16:
        model(images())
    return states, written


@pytest.mark.parametrize("design", FITS["cifar_resnet"])
def test_streams_are_float32_and_branches_16_bits(design: str) -> None:
    assert formats(net(f"resnet14@{design}", residual_in_fp32=True)) == ({torch.float32}, {torch.bfloat16})


def test_as_autocast_has_it_the_stream_has_16_bits() -> None:
    assert formats(net()) == ({torch.bfloat16}, {torch.bfloat16})


def test_sums_are_rounded_in_float32_only() -> None:
    model = net(residual_in_fp32=True)
    unit = model.stack.units[1]
    seen: dict[str, Tensor] = {}
    unit.register_forward_hook(lambda _m, i, out: seen.update(before=i[0], behind=out))
    unit.branches[0].register_forward_hook(lambda _m, _i, out: seen.update(branch=out))
    with BF16:
        model(images())
    exact = seen["before"].double() + seen["branch"].double()
    assert seen["branch"].dtype is torch.bfloat16
    assert torch.equal(seen["behind"], exact.float())
    assert not torch.equal(exact.bfloat16().double(), exact)  # 16 bits would not do


def test_nothing_changes_without_autocast() -> None:
    x = images()
    assert torch.equal(net(residual_in_fp32=True)(x), net()(x))
    assert net(residual_in_fp32=True).double()(x.double()).dtype is torch.float64


def test_it_can_be_switched_off() -> None:
    model = net(residual_in_fp32=True)
    model.stack.set_residual_in_fp32(False)
    with BF16:
        assert torch.equal(model(images()), net()(images()))


def test_features_are_float32() -> None:
    torch.manual_seed(0)
    model = skipway.create_model("resnet20@preact", image_size=8, residual_in_fp32=True, features_only=True)
    with BF16:
        assert {t.dtype for t in model(images())} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "mode"),
    [("resnet20@preact", "recompute"), ("resnet20@preact", "checkpoint"), ("resnet20@post_act", "recompute"),
     ("resnet20@exclusive_gate", "recompute"), ("resnet20@revnet", "reversible"), ("resnet20@momentum", "reversible")],
)  # fmt: skip
def test_memory_modes_give_the_same_numbers(name: str, mode: Any) -> None:
    outputs, gradients = [], []
    for chosen in ("keep", mode):
        model = net(name, memory=chosen, residual_in_fp32=True)
        with BF16:
            y = model(images())
        y.float().square().sum().backward()
        outputs.append(y)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.equal(*outputs)
    # One unit in the last place of bfloat16 is 2^-8; states that are computed back are right to float32's rounding.
    assert (gradients[0] - gradients[1]).norm() <= 2**-8 * gradients[0].norm()


def test_a_reversible_net_of_110_layers_comes_back_in_16_bits() -> None:
    model = net("resnet110@revnet", memory="reversible")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with BF16:
            y = model(images())
        y.float().square().sum().backward()
    assert model.stack.drift.largest < 1e-3  # with a stream of 16 bits 9 %


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of the compiler's own
def test_compiled_units_keep_the_format() -> None:
    plain, compiled = net("resnet14@preact", residual_in_fp32=True), net("resnet14@preact", residual_in_fp32=True)
    compiled.compile_units(backend="aot_eager")
    with BF16:
        assert torch.equal(plain(images()), compiled(images()))


@pytest.mark.parametrize("design", ["revnet", "momentum"])
def test_reversible_designs_have_it_unless_it_is_switched_off(design: str) -> None:
    assert formats(net(f"resnet14@{design}")) == ({torch.float32}, {torch.bfloat16})
    assert formats(net(f"resnet14@{design}", residual_in_fp32=False)) == ({torch.bfloat16}, {torch.bfloat16})


@pytest.mark.parametrize("name", ["resnet14@preact", "resnet14@revnet"])
def test_weights_of_16_bits_have_a_stream_of_16_bits(name: str) -> None:
    model = net(name, residual_in_fp32=True).bfloat16()
    assert model(images().bfloat16()).dtype is torch.bfloat16


# Runs -----------------------------------------------------------------------------------------------------------------


def test_it_is_part_of_a_run_and_older_runs_keep_their_names() -> None:
    plain, asked = RunSpec(model="resnet20"), RunSpec(model="resnet20", residual_in_fp32=True)
    assert RunSpec.from_dict(asked.to_dict()) == asked
    assert plain.digest() != asked.digest()
    older = {key: value for key, value in plain.to_dict().items() if key != "residual_in_fp32"}
    assert RunSpec.from_dict(older) == plain
    assert plain.digest() == "512e369aa67b0000"  # as before the field was there


def test_a_run_whose_weights_have_16_bits_is_refused() -> None:
    with pytest.raises(SkipwayError, match="residual_in_fp32 with precision bf16-true") as caught:
        RunSpec(model="resnet20", precision="bf16-true", residual_in_fp32=True)
    assert "precision bf16-mixed" in str(caught.value)


@pytest.mark.parametrize("asked", [{"memory": "recompute"}, {"memory": "auto"}, {"residual_in_fp32": True}])
def test_others_models_have_no_such_modes(asked: dict[str, Any]) -> None:
    spec = RunSpec(model="tv:resnet18", **asked)
    with pytest.raises(SkipwayError, match=f"{next(iter(asked))}.* with tv:resnet18, whose units are its own"):
        load_for_run(spec, num_classes=10, input_shape=(3, 8, 8))


def test_a_run_has_it_and_its_net_comes_back_with_it(tmp_path: Path) -> None:
    from skipway.cli import main

    assert main(
        ["train", "resnet8@preact", "--data", "digits", "--steps", "2", "--precision", "bf16-mixed",
         "--residual-in-fp32", "--no-inspect", "--out", str(tmp_path / "run")]
    ) == 0  # fmt: skip
    run = skipway.load_run(tmp_path / "run")
    assert run.spec.residual_in_fp32
    model: Any = run.model()
    assert model.stack.residual_in_fp32
    assert all(unit.residual_in_fp32 for unit in model.stack.units)
