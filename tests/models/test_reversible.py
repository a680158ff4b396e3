"""``memory="reversible"``: inputs computed back from outputs; the same numbers in memory that no depth multiplies."""

from __future__ import annotations

import json
import math
import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import skipway
from designs.cases import PAIRS, batch_for, build
from models.test_memory import assert_same, in_mode, live_bytes, saved_bytes, step
from oracle import cifar
from skipway.cli import main
from skipway.designs import DESIGNS
from skipway.designs.momentum import MomentumJoin
from skipway.designs.revnet import FirstCoupling
from skipway.errors import SkipwayError
from skipway.models import memory, reversible
from skipway.models.memory import ActivationBytes, activation_bytes
from skipway.models.reversible import Drift, reversible_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HAVING = [design for design in DESIGNS if DESIGNS[design].reversible]
# Runs of one, two and three units in the first stage, and of two in the last.
NAMES = [f"{net}@{design}" for design in HAVING for net in ("resnet26", "gpt_nano", "vit_tiny", "mlp8")]
SMALL: dict[str, dict[str, Any]] = {
    "resnet26": {"width": 8}, "gpt_nano": {"depth": 2, "width": 24}, "mlp8": {"width": 16, "in_channels": 16},
    "vit_tiny": {"depth": 2, "width": 24, "image_size": 16},
}  # fmt: skip


def small(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return skipway.create_model(name, **SMALL[name.partition("@")[0]])


def doubled(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def check(name: str, change: Callable[[Any], object] = lambda _: None) -> None:
    model = small(name).double()
    change(model)
    x = doubled(batch_for(model))
    assert_same(step(in_mode(model, "keep"), x), step(in_mode(model, "reversible"), x))


# The same numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_same_numbers(name: str) -> None:
    check(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in PAIRS if name.partition("@")[2].partition("(")[0] in HAVING])
def test_the_same_numbers_everywhere(name: str) -> None:
    model = build(name).double()
    x = doubled(batch_for(model))
    assert_same(step(in_mode(model, "keep"), x), step(in_mode(model, "reversible"), x))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["resnet110@revnet", "resnet110@momentum", "resnet164@revnet", "mlp40@revnet"])
def test_the_same_numbers_at_depth(name: str) -> None:
    torch.manual_seed(0)
    model = skipway.create_model(name).double()
    x = doubled(model.dummy_input(2))
    assert_same(step(in_mode(model, "keep"), x), step(in_mode(model, "reversible"), x))


@pytest.mark.parametrize("design", HAVING)
def test_gradients_of_the_net_written_by_hand(design: str) -> None:
    model = in_mode(small(f"resnet26@{design}").double(), "reversible")
    state = dict(model.named_parameters())
    strides = [unit.plan.branches[0].block.stride for unit in model.stack.built_units()]
    x = torch.randn(3, 3, 12, 12, dtype=torch.float64, requires_grad=True)
    ours, theirs = model(x), cifar.cifar_net(design, state, strides, x)
    probe = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * probe).sum(), [x, *state.values()]),
        torch.autograd.grad((theirs * probe).sum(), [x, *state.values()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("design", HAVING)
def test_gradients_by_finite_differences(design: str) -> None:
    model = in_mode(small(f"mlp8@{design}").double(), "reversible")
    x = torch.randn(4, 16, dtype=torch.float64)
    parameters = list(model.parameters())
    way = [torch.randn_like(p) for p in parameters]
    slope = sum(
        (g * w).sum()
        for g, w in zip(torch.autograd.grad(model(x).square().mean(), parameters), way, strict=True)
    )  # fmt: skip

    def moved(by: float) -> Tensor:
        with torch.no_grad():
            for p, w in zip(parameters, way, strict=True):
                p.add_(by * w)
            value = model(x).square().mean()
            for p, w in zip(parameters, way, strict=True):
                p.sub_(by * w)
        return value

    h = 1e-5
    torch.testing.assert_close((moved(h) - moved(-h)) / (2 * h), slope, rtol=1e-7, atol=1e-9)


def _frozen_statistics(model: nn.Module) -> None:
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()


def _frozen_weights(model: nn.Module) -> None:
    for key, parameter in model.named_parameters():
        # Inputs get no gradient then, and half of the branches.
        if key.startswith("stem") or "units.0" in key or "units.2" in key or "norm1" in key:
            parameter.requires_grad_(False)


def _dropout(model: Any) -> None:
    for unit in model.stack.units:
        unit.branches[0].append(nn.Dropout(0.5))


def _shared(model: Any) -> None:
    units = model.stack.units
    units[2].branches = units[1].branches


def _channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@pytest.mark.parametrize("design", HAVING)
@pytest.mark.parametrize(
    "change",
    [_frozen_statistics, _frozen_weights, _dropout, _shared, _channels_last, nn.Module.eval],
    ids=lambda change: change.__name__.strip("_"),
)
def test_nets_of_every_kind(change: Callable[[Any], object], design: str) -> None:
    if change is _frozen_weights:
        model = small(f"resnet26@{design}").double()
        change(model)
        x = batch_for(model).double()
        (_, kept, _), (_, saved, _) = step(in_mode(model, "keep"), x), step(in_mode(model, "reversible"), x)
        assert [key for key, grad in kept.items() if grad is None] == [k for k, g in saved.items() if g is None]
        for key, grad in kept.items():
            if grad is not None:
                torch.testing.assert_close(saved[key], grad, rtol=1e-10, atol=1e-10)
    else:
        check(f"resnet26@{design}", change)


def test_dropout_leaves_the_generator_where_it_would_be() -> None:
    model = small("resnet26@revnet").double()
    _dropout(model)
    x = batch_for(model).double()
    drawn = []
    for mode in ("keep", "reversible"):
        step(in_mode(model, mode), x)
        drawn.append(torch.randn(3))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("design", HAVING)
def test_two_steps_count_two_batches(design: str) -> None:
    model = in_mode(small(f"resnet26@{design}"), "reversible")
    for _ in range(2):
        step(model, batch_for(model))
    norms = [norm for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)]
    assert {int(norm.num_batches_tracked) for norm in norms} == {2}  # type: ignore[arg-type]
    assert {norm.momentum for norm in norms} == {0.1}


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(f"resnet26@{design}", marks=pytest.mark.exhaustive) for design in HAVING), "gpt_nano@revnet"],
)
def test_under_autocast(name: str) -> None:
    model = small(name)
    x = batch_for(model)[..., :8]
    found = []
    for mode in ("keep", "reversible"):
        twin = in_mode(model, mode)
        with torch.autocast("cpu", torch.bfloat16):
            y = twin(x)
            # Within the same context, so that a cast that is held without its graph would be taken again.
            twin.set_memory("keep")
            z = twin(x)
        (y.float().square().mean() + z.float().square().mean()).backward()
        found.append((y.detach(), {k: p.grad for k, p in twin.named_parameters()}, dict(twin.named_buffers())))
    assert {g.dtype for g in found[1][1].values()} == {torch.float32}
    # The stream is in float32 and comes back; the branches run in bfloat16.
    assert_same(*found, rtol=0.02)
    kept, saved = (torch.cat([g.flatten() for g in grads.values()]) for _, grads, _ in found)
    assert (saved - kept).norm() < 0.01 * kept.norm()


def test_a_second_backward_pass_gives_the_same() -> None:
    model = in_mode(small("resnet26@momentum").double(), "reversible")
    _dropout(model)
    loss = model(batch_for(model).double()).square().sum()
    once = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    again = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # PyTorch's compiler looks
def test_units_compiled_by_themselves() -> None:
    torch._dynamo.reset()
    model = small("mlp8@revnet").double()
    x = batch_for(model).double()
    kept, twin = step(in_mode(model, "keep"), x), in_mode(model, "reversible")
    twin.compile_units(backend="aot_eager")
    assert_same(kept, step(twin, x))


def test_hooks_of_parameters_and_units_run_once() -> None:
    # DDP averages gradients in such hooks.
    model = in_mode(small("resnet26@revnet"), "reversible")
    seen: dict[str, int] = {}

    def note(key: str) -> Any:
        return lambda *_: seen.__setitem__(key, seen.get(key, 0) + 1)

    for key, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(note(key))
    model.stack.units[2].register_forward_hook(note("unit"))
    step(model, batch_for(model))
    assert set(seen) == {*dict(model.named_parameters()), "unit"}
    assert set(seen.values()) == {1}


def test_features_and_stacks() -> None:
    model = skipway.create_model("vit_tiny@revnet", features_only=True, depth=4, width=24, image_size=16).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    found = []
    for mode in ("keep", "reversible"):
        twin = in_mode(model, mode)
        maps = twin(x)
        # The last map reads everything, the others join in between.
        sum(m.sin().sum() for m in maps).backward()
        found.append((torch.stack(maps).detach(), {k: p.grad for k, p in twin.named_parameters()}, {}))
    assert len(found[1][0]) == 4
    assert_same(*found)
    for design in HAVING:
        torch.manual_seed(0)
        stack = skipway.Stack([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(5)], design).double()
        x = torch.randn(2, 6, dtype=torch.float64)
        assert_same(step(in_mode(stack, "keep"), x), step(in_mode(stack, "reversible"), x))


# What a wrong inverse does --------------------------------------------------------------------------------------------


@contextmanager
def wrong(monkeypatch: pytest.MonkeyPatch, join: type, factor: float) -> Iterator[None]:
    """What `join` takes back is a little more or less than what it added."""
    right = join.inverse  # type: ignore[attr-defined]

    def inverse(self: Any, state: Any, branches: Any, t: Any) -> Any:
        calls = [lambda *ports, branch=branch: factor * branch(*ports) for branch in branches]
        return right(self, state, calls, t)

    with monkeypatch.context() as patch:
        patch.setattr(join, "inverse", inverse)
        yield


@pytest.mark.parametrize(("design", "join"), [("revnet", FirstCoupling), ("momentum", MomentumJoin)])
def test_a_wrong_inverse_is_noticed(monkeypatch: pytest.MonkeyPatch, design: str, join: type) -> None:
    model = small(f"resnet26@{design}").double()
    x = batch_for(model).double()
    kept = step(in_mode(model, "keep"), x)
    with wrong(monkeypatch, join, 1.000001), pytest.raises(AssertionError):
        assert_same(kept, step(in_mode(model, "reversible"), x))
    with wrong(monkeypatch, join, 1.1), pytest.warns(UserWarning, match=r"comes back 0\.0\d+ off .*set_memory"):
        step(in_mode(model, "reversible"), x)
    with wrong(monkeypatch, join, 10), pytest.raises(SkipwayError, match=r"(?s)gradients would be noise.*checkpoint"):
        step(in_mode(model, "reversible"), x)


def test_an_inverse_that_rounding_spoils_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each step back multiplies what was rounded away by ten: there are eight of them in the first stage.
    model = in_mode(skipway.create_model("resnet56@momentum(gamma=0.1)"), "reversible")
    x = torch.randn(2, 3, 8, 8)
    step(model, x)  # so the state is kept behind every second unit
    assert 0 < model.stack.drift.largest < 1e-4
    monkeypatch.setattr(reversible, "_GROWTH", math.inf)
    with pytest.raises(SkipwayError, match="gradients would be noise"):
        step(model, x)


def test_deviations_grow_with_depth_and_are_noted() -> None:
    x = torch.randn(4, 3, 8, 8)
    found = {}
    for depth in (20, 56):
        torch.manual_seed(0)
        model = in_mode(skipway.create_model(f"resnet{depth}@momentum"), "reversible")
        step(model, x)
        found[depth] = model.stack.drift.largest
    assert 0 < found[20] < found[56] < 1e-4


def test_a_net_whose_numbers_are_gone_says_so_by_its_output() -> None:
    model = in_mode(small("mlp8@revnet"), "reversible")
    x = torch.full((4, 16), float("nan"))
    model(x).sum().backward()
    assert model.stack.drift.largest == 0


# What is refused ------------------------------------------------------------------------------------------------------


def test_designs_without_an_inverse() -> None:
    model = skipway.create_model("resnet8@preact")
    with pytest.raises(SkipwayError) as error:
        model.set_memory("reversible")
    assert str(error.value) == (
        "memory=\"reversible\" with design 'preact', whose inputs do not follow from its outputs\n"
        "expected: one of the designs that have an inverse: momentum, revnet\n"
        'try: memory="checkpoint" or "recompute", which every design has'
    )
    assert (model.memory, model.stack.memory) == ("keep", "keep")
    with pytest.raises(SkipwayError, match="one of the designs that have an inverse"):
        skipway.create_model("resnet8", memory="reversible")
    assert HAVING == ["momentum", "revnet"]


def test_a_gradient_of_a_gradient_is_refused() -> None:
    model = in_mode(small("mlp8@revnet"), "reversible")
    loss = model(torch.randn(4, 16)).square().sum()
    with pytest.raises(SkipwayError, match=r'(?s)gradient of a gradient .* memory="reversible".*set_memory\("keep"\)'):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


def test_weights_that_changed_meanwhile_are_refused() -> None:
    model = in_mode(small("mlp8@revnet"), "reversible")
    loss = model(torch.randn(4, 16)).square().sum()
    with torch.no_grad():
        model.stack.units[3].branches[0].linear1.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_sharded_weights_are_refused() -> None:
    from torch.distributed.fsdp import fully_shard

    model = in_mode(small("mlp8@revnet"), "reversible")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        for unit in model.stack.units:
            fully_shard(unit, mesh=mesh)
        with pytest.raises(SkipwayError, match=r"(?s)spread over ranks \(FSDP\).*ddp"):
            model(torch.randn(4, 16))
    finally:
        torch.distributed.destroy_process_group()


# What is left as it was -----------------------------------------------------------------------------------------------


def test_names_weights_and_copies() -> None:
    models = []
    for mode in ("keep", "reversible"):
        torch.manual_seed(0)
        models.append(skipway.create_model("resnet26@revnet", memory=mode))  # type: ignore[arg-type]
    ours, theirs = (model.state_dict() for model in models)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    again = pickle.loads(pickle.dumps(models[1]))  # noqa: S301  # made on the line above
    assert again.memory == again.stack.memory == "reversible"


def test_compiled_whole_the_units_run_as_ever() -> None:
    torch._dynamo.reset()
    model = in_mode(small("mlp8@revnet").double(), "reversible")
    x = batch_for(model).double()
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), in_mode(model, "keep")(x), rtol=0, atol=0)


def test_where_somebody_watches_all_is_kept() -> None:
    model = in_mode(small("mlp8@revnet"), "reversible")
    x = batch_for(model)
    with torch.overrides.BaseTorchFunctionMode():
        assert saved_bytes(model, x) == saved_bytes(in_mode(model, "keep"), x)
    assert saved_bytes(model, x) < saved_bytes(in_mode(model, "keep"), x)


def test_without_gradients_nothing_is_different() -> None:
    model = in_mode(small("resnet26@revnet"), "reversible").eval()
    with torch.no_grad():
        x = batch_for(model)
        assert torch.equal(model(x), in_mode(model, "keep")(x))
    assert model.stack.drift.looks == 0


# Less memory ----------------------------------------------------------------------------------------------------------


def test_runs() -> None:
    model = skipway.create_model("resnet20@revnet")
    # The first unit is over, the second opens the pair, the third runs back; then one changes the shape.
    assert list(reversible_runs(model.stack.built_units(), ())) == [(i, i + 1) for i in range(9)]
    units = skipway.create_model("resnet26@momentum").stack.built_units()
    assert list(reversible_runs(units, ())) == [(0, 1), (1, 4), (4, 5), (5, 6), (6, 8), (8, 9), (9, 10), (10, 12)]
    # A state that is looked at is kept.
    assert list(reversible_runs(units, (2, 3, 11)))[:4] == [(0, 1), (1, 3), (3, 4), (4, 5)]
    assert list(reversible_runs([], ())) == []
    # Forty-three times 1/γ are still below a hundred.
    units = skipway.create_model("mlp100@momentum").stack.built_units()
    assert list(reversible_runs(units, ())) == [(0, 1), (1, 44), (44, 87), (87, 100)]
    units = skipway.create_model("mlp100@revnet").stack.built_units()
    assert list(reversible_runs(units, ())) == [(0, 1), (1, 100)]


@pytest.mark.parametrize("design", HAVING)
def test_saved_bytes_do_not_grow_with_depth(design: str) -> None:
    x = torch.randn(2, 3, 8, 8)
    # Numbers of units in a stage that are even throughout, so that the same are over.
    found = [saved_bytes(in_mode(skipway.create_model(f"resnet{depth}@{design}"), "reversible"), x)
             for depth in (26, 62)]  # fmt: skip
    assert found[0] == found[1] < 0.11 * saved_bytes(skipway.create_model(f"resnet62@{design}"), x)
    deep = skipway.create_model(f"gpt_nano@{design}", depth=12)
    tokens = deep.dummy_input(2)
    assert saved_bytes(in_mode(deep, "reversible"), tokens) < 0.05 * saved_bytes(deep, tokens)


@pytest.mark.parametrize("name", ["resnet56@revnet", "resnet56@momentum", "resnet47@revnet"])
def test_what_is_predicted_is_what_is_held(name: str) -> None:
    model = skipway.create_model(name)
    x = torch.randn(4, 3, 16, 16)
    need = activation_bytes(model, model.stack, x)["reversible"].of(4)
    stream = 4 * model.stack.built_units()[1].plan.in_width * 16 * 16 * 4
    assert need <= live_bytes(in_mode(model, "reversible"), x) <= need + 1.5 * stream


# auto and the command line --------------------------------------------------------------------------------------------


def test_auto_takes_it_where_nothing_faster_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = skipway.create_model("gpt_nano@revnet", depth=12, width=24, memory="auto")
    x = model.dummy_input(8)
    needs = {mode: need.of(8) for mode, need in activation_bytes(model, model.stack, x).items()}
    assert list(needs) == ["keep", "recompute", "checkpoint", "reversible"]
    between = (needs["checkpoint"] + needs["reversible"]) / 2
    assert needs["reversible"] < between < needs["checkpoint"]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    lines = {mode: ActivationBytes(once=need, sample=0) for mode, need in needs.items()}
    monkeypatch.setattr(memory, "activation_bytes", lambda *_: lines)
    later = 3 * sum(p.nbytes for p in model.parameters())
    for free, bound, mode, fits in (
        (between, 0.01, "reversible", True), (1, 0.01, "reversible", False), (between, 1e-8, "checkpoint", False),
    ):  # fmt: skip
        monkeypatch.setattr(memory, "free_bytes", lambda _, left=free + later: left / 0.8)
        monkeypatch.setattr(reversible, "_WORD", bound)  # float32 comes back to 1e-6 or so
        choice = model.choose_memory(x)
        assert (choice.mode, choice.fits) == (mode, fits)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.stack.drift == Drift()


def test_show_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "resnet26@revnet", "--batch", "64"]) == 0
    assert "reversible" in capsys.readouterr().out.partition("kept for the backward pass")[2]
    assert main(["show", "resnet20@preact", "--batch", "64"]) == 0
    assert "reversible" not in capsys.readouterr().out.partition("kept for the backward pass")[2].partition("design")[0]


def test_train_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "2", "--batch", "8", "--train-size", "40", "--test-size", "20", "--no-inspect"]
    options += ["--memory", "reversible", "--out"]
    assert main(["train", "mlp8@revnet", *options, str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "spec.json").read_text())["memory"] == "reversible"
    assert (tmp_path / "run" / "model.safetensors").exists()
    capsys.readouterr()
    assert main(["train", "resnet8", *options, str(tmp_path / "no")]) == 2
    assert "one of the designs that have an inverse: momentum, revnet" in capsys.readouterr().err
