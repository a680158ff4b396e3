"""The ways of dealing with activations: the same numbers in less memory."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import skipway
from designs.cases import PAIRS, batch_for, build
from skipway.errors import SkipwayError
from skipway.models import FITS, memory
from skipway.models.checkpointed import best_segment, peak
from skipway.models.memory import activation_bytes
from skipway.spec import MEMORY_MODES

if TYPE_CHECKING:
    from collections.abc import Callable

# That every design has; the other is in test_reversible.py.
MODES = MEMORY_MODES[:3]
SAVING = MODES[1:]
QUICK = [
    *(f"resnet20@{design}" for design in FITS["cifar_resnet"]), "resnet164@preact", "resnet164@post_act",
    "resnet20@one_layer_skip(preact=true)", "wrn28_10@preact(dropout=0.3)", "densenet40_12@dense",
    *(f"gpt_nano@{design}" for design in FITS["gpt"]), "gpt_nano@pre_norm(norm=rms)", "vit_tiny@pre_norm",
    "mlp40@highway", "mlp40@post_act",
]  # fmt: skip


def step(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Output, gradients and buffers of one training step."""
    torch.manual_seed(3)
    y = model(x)
    first = y[0] if isinstance(y, list) else y
    torch.manual_seed(4)
    (first * torch.randn_like(first)).sum().backward()
    # Of another batch's graph, so that nothing of the first pass lies about.
    return first.detach(), {k: p.grad for k, p in model.named_parameters()}, dict(model.named_buffers())  # type: ignore[misc]


def in_mode(model: Any, mode: str) -> Any:
    twin = copy.deepcopy(model)
    twin.set_memory(mode)
    return twin


def assert_same(kept: Any, saved: Any, rtol: float = 1e-12) -> None:
    """The same bits forward and in the buffers, the same gradients but for rounding."""
    assert torch.equal(kept[0], saved[0])
    assert kept[1].keys() == saved[1].keys()
    for key, grad in kept[1].items():
        largest = grad.abs().max()
        assert (saved[1][key] - grad).abs().max() <= rtol * largest, key
    for key, buffer in kept[2].items():
        assert torch.equal(saved[2][key], buffer), key


def check(name: str, change: Callable[[Any], object] = lambda _: None) -> None:
    model = build(name).double()
    change(model)
    x = batch_for(model)
    x = x.double() if x.is_floating_point() else x
    kept = step(in_mode(model, "keep"), x)
    for mode in SAVING:
        assert_same(kept, step(in_mode(model, mode), x))


# The same numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUICK)
def test_every_design_gives_the_same_numbers(name: str) -> None:
    check(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(set(PAIRS) - set(QUICK)))
def test_every_design_gives_the_same_numbers_everywhere(name: str) -> None:
    check(name)


def _norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


def _cumulative(model: nn.Module) -> None:
    for norm in _norms(model):
        norm.momentum = None


def _without_gain(model: nn.Module) -> None:
    for norm in _norms(model):
        norm.affine, norm.weight, norm.bias = False, None, None  # type: ignore[assignment]


def _without_tracking(model: nn.Module) -> None:
    for norm in _norms(model):
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None


def _frozen_statistics(model: nn.Module) -> None:
    for norm in _norms(model):
        assert norm.running_mean is not None
        norm.eval().running_mean.uniform_(-1, 1)


def _frozen_weights(model: nn.Module) -> None:
    for key, parameter in model.named_parameters():
        if "norm1" in key or "conv2" in key:
            parameter.requires_grad_(False)


def _channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "change",
    [_cumulative, _without_gain, _without_tracking, _frozen_statistics, _channels_last, nn.Module.eval],
    ids=lambda change: change.__name__.strip("_"),
)
def test_norms_of_every_kind(change: Callable[[Any], object]) -> None:
    check("resnet20@preact", change)


@pytest.mark.parametrize("mode", SAVING)
def test_frozen_parameters_get_no_gradient(mode: str) -> None:
    model = build("resnet20@preact").double()
    _frozen_weights(model)
    x = batch_for(model).double()
    (_, kept, _), (_, saved, _) = step(in_mode(model, "keep"), x), step(in_mode(model, mode), x)
    for key, grad in kept.items():
        if grad is None:
            assert saved[key] is None, key
        else:
            torch.testing.assert_close(saved[key], grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", SAVING)
def test_two_steps_count_two_batches(mode: str) -> None:
    model = in_mode(build("resnet20@preact"), mode)
    for _ in range(2):
        step(model, batch_for(model))
    assert {int(norm.num_batches_tracked) for norm in _norms(model)} == {2}  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", SAVING)
def test_dropout_draws_one_mask(mode: str) -> None:
    model = build("wrn28_10@preact(dropout=0.5)").double()
    x = batch_for(model).double()
    assert_same(step(in_mode(model, "keep"), x), step(in_mode(model, mode), x))
    # The next number is the same too.
    drawn = []
    for word in ("keep", mode):
        step(in_mode(model, word), x)
        drawn.append(torch.randn(3))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("mode", SAVING)
def test_a_second_backward_pass_gives_the_same(mode: str) -> None:
    model = in_mode(build("wrn28_10@preact(dropout=0.5)").double(), mode)
    loss = model(batch_for(model).double()).square().sum()
    once = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    again = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("mode", SAVING)
@pytest.mark.parametrize("name", ["resnet20@preact", "resnet20@post_act", "gpt_nano@pre_norm"])
def test_under_autocast(name: str, mode: str) -> None:
    model = build(name)
    x = batch_for(model)
    found = []
    for word in ("keep", mode):
        twin = in_mode(model, word)
        with torch.autocast("cpu", torch.bfloat16):
            torch.manual_seed(3)
            y = twin(x)
        assert y.dtype == torch.bfloat16
        y.float().square().mean().backward()
        found.append((y.detach(), {k: p.grad for k, p in twin.named_parameters()}, dict(twin.named_buffers())))
    assert {g.dtype for g in found[1][1].values()} == {torch.float32}
    # A gradient is a sum of many numbers of eight bits.
    assert_same(*found, rtol=0.02)


def test_features_and_stacks() -> None:
    model = skipway.create_model("resnet20@preact", features_only=True, width=8).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    maps = [[m.detach() for m in in_mode(model, mode)(x)] for mode in MODES]
    assert [len(found) for found in maps] == [3, 3, 3]
    assert all(torch.equal(a, b) for found in maps[1:] for a, b in zip(maps[0], found, strict=True))
    stack = skipway.Stack([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(5)]).double()
    x = torch.randn(2, 6, dtype=torch.float64)
    kept = step(copy.deepcopy(stack), x)
    for mode in SAVING:
        assert_same(kept, step(in_mode(stack, mode), x))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["resnet8@preact", "gpt_nano", "resnet26@revnet", "gpt_nano@momentum"])
def test_two_ranks(name: str, tmp_path: Path) -> None:
    # Each rank makes its half of the batch; gradients are averaged while the backward pass goes on.
    child = Path(__file__).parent / "memory_ranks.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(  # noqa: S603  # our own command
        [*launcher, str(child), name, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {file.stem: torch.load(file, weights_only=True) for file in tmp_path.iterdir()}
    assert set(found) == set(MEMORY_MODES if "@revnet" in name or "@momentum" in name else MODES)
    for mode in set(found) - {"keep"}:
        assert torch.equal(found[mode]["ranks_differ"], torch.tensor(0.0))
        assert found[mode].keys() == found["keep"].keys()
        for key, value in found["keep"].items():
            torch.testing.assert_close(found[mode][key], value, rtol=1e-10, atol=1e-12, msg=key)


# What is left as it was -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [*MODES, "auto"])
def test_names_and_weights_do_not_depend_on_the_mode(mode: Any) -> None:
    torch.manual_seed(0)
    plain = skipway.create_model("resnet8@preact")
    torch.manual_seed(0)
    other = skipway.create_model("resnet8@preact", memory=mode)
    assert [type(m) for m in plain.modules()] == [type(m) for m in other.modules()]
    ours, theirs = plain.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    again = pickle.loads(pickle.dumps(other))  # noqa: S301  # made on the line
    assert again.memory == other.memory == mode


def test_hooks_inside_a_branch_are_called() -> None:
    model = in_mode(build("resnet20@preact"), "recompute")
    branch = model.stack.units[1].branches[0]
    seen: list[str] = []
    for name in ("norm1", "conv2"):
        branch.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name))
    step(model, batch_for(model))
    assert seen == ["norm1", "conv2"]


def test_what_a_branch_holds_may_be_replaced() -> None:
    class Half(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() / 2

    def change(model: Any) -> None:
        for unit in model.stack.units[1:]:
            unit.branches[0].act1 = Half()

    check("resnet20@preact", change)


def test_one_value_a_channel_is_refused_as_ever() -> None:
    for mode in MODES:
        unit = in_mode(build("resnet20@preact"), mode).stack.units[-1]
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            unit(torch.randn(1, unit.plan.in_width, 1, 1))


def test_a_gradient_of_a_gradient_is_refused() -> None:
    model = in_mode(build("resnet20@preact"), "recompute")
    loss = model(batch_for(model)).square().sum()
    with pytest.raises(SkipwayError, match=r'(?s)gradient of a gradient .* memory="recompute".*set_memory\("keep"\)'):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


def test_compiled_models_run() -> None:
    torch._dynamo.reset()
    model = in_mode(build("resnet20@preact"), "recompute").double()
    x = batch_for(model).double()
    kept = step(in_mode(model, "keep"), x)
    compiled: Any = torch.compile(model, backend="eager")
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x), kept[0], rtol=0, atol=0)


# Less memory ----------------------------------------------------------------------------------------------------------


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """Of each storage that autograd keeps of a forward pass."""
    seen: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(x)
    return sum(seen.values())


class Live(TorchDispatchMode):
    """When the memory of each tensor that an operation returned came and went, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self.numbers: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and (key := tensor.untyped_storage()._cdata) not in self.numbers:
                storage = tensor.untyped_storage()
                number = self.numbers[key] = len(self.events)
                self.events.append((number, storage.nbytes()))
                weakref.finalize(storage, self._gone, key, number, storage.nbytes())
        return out

    def _gone(self, key: int, number: int, size: int) -> None:
        del self.numbers[key]
        self.events.append((number, -size))


def live_bytes(model: nn.Module, x: Tensor) -> int:
    """Most that is there at any time of a step, gradients of parameters left out."""
    with Live() as live:
        model(x).square().mean().backward()
    lasting = set(live.numbers.values())
    return max(itertools.accumulate(size for number, size in live.events if number not in lasting))


@pytest.mark.parametrize(
    ("name", "recompute", "checkpoint"),
    [
        # Of two tensors around each weight layer one is kept; stem and head, where nothing is saved, count here too.
        ("resnet56@preact", 0.53, 0.25),
        ("resnet164@preact", 0.53, 0.16),
        # The norm behind the last weights is needed, and so is the stream behind the ReLU: one in four is saved.
        ("resnet56@post_act", 0.77, 0.25),
        ("resnet56@relu_only_preact", 0.77, 0.26),
        # Both activations of a branch, of five tensors.
        ("resnet56@relu_before_add", 0.63, 0.25),
        ("resnet56@bn_after_add", 0.77, 0.25),
    ],
)
def test_saved_bytes(name: str, recompute: float, checkpoint: float) -> None:
    model = skipway.create_model(name)
    x = torch.randn(2, 3, 16, 16)
    keep, rebuilt, boundaries = (saved_bytes(in_mode(model, mode), x) for mode in MODES)
    assert boundaries < rebuilt < keep
    assert rebuilt <= recompute * keep
    needs = activation_bytes(model, model.stack, torch.randn(4, 3, 16, 16))
    assert needs["keep"].of(2) == pytest.approx(keep, rel=0.01)
    assert needs["recompute"].of(2) == pytest.approx(rebuilt, rel=0.01)
    assert boundaries < needs["checkpoint"].of(2) <= checkpoint * keep


def test_tokens_are_saved_too() -> None:
    model = skipway.create_model("gpt_nano", depth=6)
    x = model.dummy_input(2)
    assert saved_bytes(in_mode(model, "recompute"), x) < 0.65 * saved_bytes(model, x)


@pytest.mark.parametrize("name", ["resnet56@preact", "resnet56@post_act"])
def test_what_is_predicted_is_what_is_held(name: str) -> None:
    model = skipway.create_model(name)
    x = torch.randn(4, 3, 16, 16)
    needs = activation_bytes(model, model.stack, x)
    one = 4 * 16 * 16 * 16 * 4  # the stream of the first stage: so much more is at work within a unit
    for mode in MODES:
        held = live_bytes(in_mode(model, mode), x)
        assert needs[mode].of(4) <= held <= needs[mode].of(4) + one, mode


def test_segments_are_as_long_as_is_best() -> None:
    for count in (1, 9, 36, 100):
        length = best_segment([1.0] * count, [4.0] * count)
        assert length == pytest.approx((count / 4) ** 0.5, abs=1)
    # By hand: 3 + 8 with two segments of two and one of one; the last is run again while all three are kept.
    assert peak([1, 1, 1, 1, 1], [4, 4, 4, 4, 4], 2) == 10
    assert peak([1, 1, 1, 1, 1], [4, 4, 4, 4, 4], 5) == 21
    model = skipway.create_model("resnet164@preact")
    assert 2 <= model.stack.segment <= 9


# auto -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "mode", "fits"),
    [(1.5, "keep", True), (0.7, "recompute", True), (0.4, "checkpoint", True), (0.01, "checkpoint", False)],
)
def test_auto_takes_the_fastest_that_fits(
    monkeypatch: pytest.MonkeyPatch, free: float, mode: str, fits: bool
) -> None:  # fmt: skip
    model = skipway.create_model("resnet56@preact", memory="auto")
    x = torch.randn(8, 3, 16, 16)
    whole = saved_bytes(in_mode(model, "keep"), x)
    later = 3 * sum(p.nbytes for p in model.parameters())
    monkeypatch.setattr(memory, "free_bytes", lambda _: (free * whole + later) / 0.8)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(9)
    choice = model.choose_memory(x)
    assert torch.initial_seed() == 9
    assert torch.equal(torch.randn(2), torch.randn(2, generator=torch.Generator().manual_seed(9)))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert (choice.mode, choice.fits, model.stack.memory, model.memory) == (mode, fits, mode, "auto")
    assert f"memory=auto ({mode})" in repr(model)
    assert str(choice).startswith(f"memory: {mode}, for 8 samples on ")
    assert ("not even that" in str(choice)) != fits


def test_auto_chooses_at_the_first_training_batch_and_at_larger_ones() -> None:
    model = build("resnet20@preact")
    model.set_memory("auto")
    x = batch_for(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin(x)
    assert twin.memory_choice is None
    model.eval()(x)
    assert model.memory_choice is None
    plain = step(build("resnet20@preact"), x)
    assert_same(plain, step(model.train(), x))
    assert model.memory_choice is not None
    assert model.memory_choice.samples == 4
    first = model.memory_choice
    model(x[:2])
    assert model.memory_choice is first
    model(torch.cat((x, x)))
    assert model.memory_choice.samples == 8


def test_words() -> None:
    model = skipway.create_model("resnet8")
    assert repr(model).startswith("Net(\n  resnet8\n")
    model.set_grad_checkpointing()
    assert model.memory == model.stack.memory == "checkpoint"
    assert "resnet8, memory=checkpoint" in repr(model)
    model.set_grad_checkpointing(False)
    assert model.memory == model.stack.memory == "keep"
    with pytest.raises(SkipwayError, match="unknown memory 'revertible'\nexpected: did you mean 'reversible'"):
        model.set_memory("revertible")  # type: ignore[arg-type]
    with pytest.raises(SkipwayError, match="'auto'\nexpected: one of: checkpoint, keep, recompute, reversible"):
        model.stack.set_memory("auto")
