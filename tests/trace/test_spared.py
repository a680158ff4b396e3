"""A run in which products are not computed records what the computed one records; who looks at a number gets it."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from skipway.diagnostics.inspect import inspect
from skipway.errors import ModelRunError
from skipway.trace import spared
from skipway.trace.mode import DispatchMode
from skipway.trace.record import Trace, record

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 8
PRODUCTS = ("convolution", "mm", "addmm", "bmm")


class _Ran(DispatchMode):
    """Lies around a recorded run and sees what that passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Embedding(16, WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)


def _image(*layers: nn.Module) -> nn.Module:
    stem = nn.Conv2d(3, WIDTH, 3, stride=2, padding=1)
    return nn.Sequential(stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convolutions": (
        lambda: _image(
            nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, groups=WIDTH, dilation=2, padding=1),
            nn.ConvTranspose2d(WIDTH, 4, 2, stride=2), nn.MaxPool2d(2), nn.Dropout(),
        ),
        lambda: torch.randn(2, 3, 12, 12),
    ),
    "channels last": (
        lambda: _image(nn.Conv2d(WIDTH, 4, 1)).to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 3, 12, 12),
    ),
    "sound": (lambda: nn.Sequential(nn.Conv1d(2, 4, 5), nn.GELU(), nn.Conv1d(4, 4, 1)), lambda: torch.randn(2, 2, 30)),
    "one sample without a batch": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), lambda: torch.randn(3, 8, 8)),
    "attention": (_Attends, lambda: torch.randint(16, (2, 5))),
    "recurrent": (lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True), lambda: torch.randn(2, 4, WIDTH)),
}  # fmt: skip


def _facts(trace: Trace) -> list[Any]:
    return [trace.graph.nodes, trace.graph.outputs, trace.graph.calls, trace.operations, trace.drawn_from]


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("net", list(NETS))
def test_the_record_is_the_same(net: str, train: bool) -> None:
    torch.manual_seed(0)
    build, make = NETS[net]
    model, batch = build().train(train), make()
    computed, bare = (record(model, batch, addresses=False, values=values) for values in (True, False))
    assert _facts(bare) == _facts(computed)
    assert (computed.runs, bare.runs) == (1, 1)


@pytest.mark.parametrize("net", ["convolutions", "sound", "attention"])
def test_products_of_activations_are_not_computed(net: str) -> None:
    build, make = NETS[net]
    model, batch = build(), make()
    counts = {}
    for values in (True, False):
        with _Ran() as ran:
            record(model, batch, addresses=False, values=values)
        counts[values] = sum(name in PRODUCTS for name in ran.names)
    assert counts[True] > 1
    assert counts[False] == sum(isinstance(m, nn.ConvTranspose2d) for m in model.modules())


ORDERS = (torch.contiguous_format, torch.channels_last)


@st.composite
def _convolutions(draw: st.DrawFn) -> tuple[Any, ...]:
    """Arguments of a convolution, also of some that fail, and of some whose input lies channels last."""
    dims, groups, features, per_group = (draw(st.integers(1, most)) for most in (3, 3, 4, 3))
    channels = groups * per_group + draw(st.sampled_from([0, 0, 0, 1]))
    x = torch.randn(draw(st.integers(0, 2)), channels, *[draw(st.integers(1, 9)) for _ in range(dims)])
    weight = torch.randn(groups * features, per_group, *[draw(st.integers(1, 4))] * dims)
    if dims == 2:
        x, weight = (t.to(memory_format=draw(st.sampled_from(ORDERS))) for t in (x, weight))
    bias = torch.zeros(groups * features) if draw(st.booleans()) else None
    stride, padding, dilation = ([draw(st.integers(low, low + 2))] * dims for low in (1, 0, 1))
    if torch.channels_last in map(spared._layout, (x, weight)):
        dilation = [1, 1]  # some others end PyTorch 2.14's process
    return x, weight, bias, stride, padding, dilation, False, [0] * dims, groups


@settings(max_examples=100, deadline=None)
@given(_convolutions())
def test_the_zeros_lie_as_the_convolution_would(arguments: tuple[Any, ...]) -> None:
    zeros = spared._convolution(*arguments)
    try:
        real = torch.ops.aten.convolution(*arguments)
    except RuntimeError:
        assert zeros is None
        return
    if zeros is None:
        assert not arguments[0].numel()
    else:
        assert (zeros.shape, _steps(zeros), zeros.dtype) == (real.shape, _steps(real), real.dtype)


def _steps(tensor: torch.Tensor) -> list[int]:
    """Strides; where there is one entry there is no step, and versions of PyTorch set others."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@pytest.mark.parametrize(
    "shapes",
    [[(2, 3), (3, 4)], [(2, 3), (4, 3)], [(4,), (2, 3), (3, 4)], [(3,), (2, 3), (3, 4)], [(5, 2, 3), (5, 3, 1)],
     [(5, 2, 3), (1, 3, 1)]],
)  # fmt: skip
def test_the_zeros_lie_as_the_product_would(shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.randn(s) for s in shapes]
    op = "addmm" if len(shapes) == 3 else "bmm" if len(shapes[0]) == 3 else "mm"
    zeros = spared._STAND_INS[op](*tensors)
    try:
        real = getattr(torch, op)(*tensors)
    except RuntimeError:
        assert zeros is None
    else:
        assert zeros is not None
        assert (zeros.shape, zeros.stride()) == (real.shape, real.stride())


# ---- the model looks at numbers


class _Chooses(nn.Module):
    """Adds where the first layer gives what it really gives: 8 in the last channel, else positive; not so with zeros.

    Not in a branch of an `if`, so that a look that is missed shows as another graph.
    """

    def __init__(self, looks: Callable[[_Chooses, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("seen", torch.zeros(()))
        self.looks = looks
        with torch.no_grad():
            self.first.weight.copy_(torch.ones(WIDTH, WIDTH) / WIDTH)
            self.first.weight[-1] = 1
            self.first.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return x + self.second(y).relu() if self.looks(self, y) else self.second(y)


def _swallowed(_: _Chooses, y: Tensor) -> bool:
    try:
        return bool(y.sum() > 0)
    except BaseException:  # noqa: BLE001  # as careless code has it
        return False


def _kept(model: _Chooses, y: Tensor) -> bool:
    model.seen.copy_(y.sum())
    return model.seen.item() > 0


def _running(model: _Chooses, y: Tensor) -> bool:
    model.norm(y)
    return model.norm.running_mean.sum().item() > 0


def _scripted(_: _Chooses, y: Tensor) -> bool:
    return bool(torch.jit.script(_is_positive)(y))


def _is_positive(y: Tensor) -> bool:
    return bool(y.sum() > 0)


LOOKS: dict[str, Callable[[_Chooses, Tensor], Any]] = {
    "truth": lambda _, y: (y > 0).any(),
    "item": lambda _, y: y.sum().item() > 0,
    "number": lambda _, y: float(y[0, 0].exp()) > 1.5,
    "list": lambda _, y: y.relu().tolist()[0][0] > 0,
    "array": lambda _, y: y.view(-1).numpy().sum() > 0,
    "as array": lambda _, y: np.asarray(y).sum() > 0,
    "exchange": lambda _, y: torch.from_dlpack(y).sum() > 0,
    "memory": lambda _, y: ctypes.c_float.from_address(y.data_ptr()).value > 0,
    "text": lambda _, y: "[0., 0." not in str(y),
    "position": lambda _, y: int(y[0].argmax()) == WIDTH - 1,
    "position of a maximum": lambda _, y: int(y.max(dim=1).indices[0]) == WIDTH - 1,
    "shape": lambda _, y: len(y[y > 0]) > 0,
    "whole numbers": lambda _, y: y.round().long().sum() > 0,
    "equality": lambda _, y: not torch.equal(y, torch.zeros_like(y)),
    "swallowed": _swallowed,
    "by way of a buffer": _kept,
    "by way of running statistics": _running,
    "scripted": _scripted,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
@pytest.mark.parametrize("how", list(LOOKS))
def test_a_look_sees_the_real_number(how: str) -> None:
    model, batch = _Chooses(LOOKS[how]), torch.ones(2, WIDTH)
    bare = record(model, batch, addresses=False, values=False)
    assert [n.op for n in bare.graph.nodes].count("add") == 1
    assert _facts(bare) == _facts(record(model, batch, addresses=False))
    assert bare.runs == 2
    assert (model.seen, model.norm.running_mean.sum()) == (0, 0)


@pytest.mark.parametrize(
    "looks",
    [
        lambda _, y: y.shape[0] > 0 and y.is_contiguous(),
        lambda _, y: torch.ones_like(y, dtype=torch.bool).any() and y.new_zeros(2, dtype=torch.int64).sum() == 0,
        lambda m, y: m.first.weight.sum().item() > 0 and bool(m.first.weight.mm(m.first.weight).sum() > 0),
        lambda _, y: F.dropout(y, training=True).shape == y.shape,
    ],
    ids=["shape", "tensors of its shape", "parameters", "dropout"],
)
def test_what_needs_no_activation_costs_no_further_run(looks: Callable[[_Chooses, Tensor], Any]) -> None:
    trace = record(_Chooses(looks), torch.ones(2, WIDTH), addresses=False, values=False)
    assert ([n.op for n in trace.graph.nodes].count("add"), trace.runs) == (1, 1)


def test_what_does_not_depend_on_the_batch_is_computed() -> None:
    kept = []

    def keeps(model: _Chooses, y: Tensor) -> bool:
        kept.append(model.second.weight @ model.first.weight)
        return True

    model = _Chooses(keeps)
    assert record(model, torch.ones(2, WIDTH), addresses=False, values=False).runs == 1
    assert torch.equal(kept[0], model.second.weight @ model.first.weight)


def test_what_keeps_activations_beside_the_modules_keeps_zeros() -> None:
    kept: list[Tensor] = []
    model = _Chooses(lambda _, y: kept.append(y) is None)
    for values in (True, False):
        record(model, torch.ones(2, WIDTH), addresses=False, values=values)
    assert [bool(y.any()) for y in kept] == [True, False]


@pytest.mark.parametrize("everywhere", [False, True], ids=["on the model", "on all modules"])
def test_hooks_are_shown_real_numbers(everywhere: bool) -> None:
    shown = []
    model = _Chooses(lambda _, y: True)
    register = nn.modules.module.register_module_forward_hook if everywhere else model.first.register_forward_hook
    handle = register(lambda module, args, output: shown.append((module, output)))
    try:
        assert record(model, torch.ones(2, WIDTH), addresses=False, values=False).runs == 1
    finally:
        handle.remove()
    assert all(float(output[0, -1]) == WIDTH for module, output in shown if module is model.first)
    assert shown


def test_nothing_stays_on_tensors() -> None:
    readers = {name: vars(torch.Tensor).get(name) for name in spared._READERS}
    for looks in (LOOKS["shape"], LOOKS["list"], lambda _, y: True, lambda _, y: 1 / 0):
        with contextlib.suppress(ZeroDivisionError):
            record(_Chooses(looks), torch.ones(2, WIDTH), addresses=False, values=False)
        assert {name: vars(torch.Tensor).get(name) for name in spared._READERS} == readers


@pytest.mark.parametrize("at", [0, 1], ids=["at once", "after others"])
def test_what_does_not_fit_raises_the_same(at: int) -> None:
    layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    layers[at] = nn.Linear(WIDTH + 1, WIDTH)
    messages = []
    for options in ({"profile": "fast"}, {"structure_only": True, "profile": "fast"}):
        with pytest.raises(ModelRunError) as caught:
            inspect(nn.Sequential(*layers), torch.randn(2, WIDTH), **options)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_an_inspection_counts_both_runs() -> None:
    batch = torch.ones(2, WIDTH)
    for how, runs in {"truth": 2, "shape": 2}.items():
        found = inspect(_Chooses(LOOKS[how]), batch, structure_only=True, profile="fast")
        assert (found.runs, len(found.units)) == ({"trace": runs}, 1)
    assert inspect(_Chooses(lambda _, y: True), batch, structure_only=True, profile="fast").runs == {"trace": 1}
    assert inspect(_Chooses(LOOKS["truth"]), batch, structure_only=True).runs["trace"] == 1
