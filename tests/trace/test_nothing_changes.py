"""An inspection leaves no trace: on public models, on models that change themselves, on models that raise."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from skipway.diagnostics.inspect import inspect
from skipway.errors import SkipwayError
from units.adversary import ADVERSARY
from units.hard_cases import HARD
from zoo.fingerprint import differences, state
from zoo.models import SAMPLE, ZOO
from zoo.restless import RESTLESS, Bomb, Restless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries' deprecations

WIDTH = 8
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {"structure_only": True, "profile": "fast"},  # products are not even computed
    "structure": {"structure_only": True},
    "default": {},
}
depths = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@pytest.fixture(scope="module", autouse=True)
def _process_group() -> Iterator[None]:
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def changed(model: nn.Module, batch: Any, *, runs: bool = False, **options: Any) -> list[str]:
    """What one inspection changed; unless the model is known to run, its own error counts as a normal end."""
    before = state(model, batch)
    with contextlib.suppress(*(() if runs else (SkipwayError, KeyboardInterrupt))):
        inspect(model, batch, **options)
    return differences(before, state(model, batch))


# Convolutions with running statistics, attention with dropout, and a model of two halves.
EVERY_WAY = ("timm/resnet18", "hf/bert", "hf/t5")


def test_some_are_inspected_in_every_way() -> None:
    assert set(EVERY_WAY) <= set(SAMPLE)


@depths
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", EVERY_WAY)
def test_in_every_way(name: str, train: bool, options: dict[str, Any]) -> None:
    model, batch = ZOO[name].make()
    model.train(train)
    assert changed(model, batch, runs=True, **options) == []


@pytest.mark.parametrize("name", [n for n in SAMPLE if n not in EVERY_WAY])
def test_sample(name: str) -> None:
    """In train mode more is written than in eval mode, and by default more is run than for the structure alone."""
    model, batch = ZOO[name].make()
    assert changed(model.train(), batch, runs=True) == []


@pytest.mark.exhaustive
@depths
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", [n for n in ZOO if n not in EVERY_WAY])
def test_rest(name: str, train: bool, options: dict[str, Any]) -> None:
    model, batch = ZOO[name].make()
    model.train(train)
    assert changed(model, batch, runs=name in SAMPLE, **options) == []


@depths
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("what", list(RESTLESS))
def test_models_that_change_themselves(what: str, train: bool, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = RESTLESS[what]().train(train)
    assert changed(model, torch.randn(4, WIDTH), **options) == []


@pytest.mark.parametrize("name", [*HARD, *ADVERSARY])
def test_hand_made_models(name: str) -> None:
    case = {**HARD, **ADVERSARY}[name]
    torch.manual_seed(0)
    assert changed(case.build().train(case.train), case.batch()) == []


@depths
def test_gradients_modes_and_hooks_of_the_user_stay(options: dict[str, Any]) -> None:
    model = nn.Sequential(Restless(), Restless(), nn.Linear(WIDTH, 2))
    model(torch.randn(4, WIDTH)).sum().backward()
    model[0].eval()
    model[1].inner.requires_grad_(requires_grad=False)
    model[1].register_forward_hook(lambda module, args, output: None)
    model[2].weight.register_hook(lambda grad: grad)
    batch = torch.randn(4, WIDTH, requires_grad=True)
    assert changed(model, batch, runs=True, **options) == []


class Loose(nn.Module):
    """Blocks where PyTorch does not look: in a list, a tuple in a dict, and a block in a block's list."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [self.block(), self.block()]
        self.others = {"pair": (self.block(), Restless())}
        self.blocks[0].more = [self.block()]
        self.head = nn.Linear(WIDTH, 2)

    @staticmethod
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2))

    @property
    def loose(self) -> list[nn.Module]:
        return [*self.blocks, *self.others["pair"], *self.blocks[0].more]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.loose:
            x = x + block(x)
        return self.head(x)


@depths
@pytest.mark.parametrize("train", [True, False])
def test_modules_in_plain_containers_stay(train: bool, options: dict[str, Any]) -> None:
    model, batch = Loose().train(train), torch.randn(4, WIDTH)
    before = [state(block) for block in model.loose]
    assert changed(model, batch, runs=True, **options) == []
    assert [differences(was, state(block)) for was, block in zip(before, model.loose, strict=True)] == [[]] * 5


def _net(kind: str) -> tuple[nn.Module, Tensor]:
    if kind == "units":
        return nn.Sequential(Restless(), nn.Dropout(0.2), Restless(), nn.Linear(WIDTH, 2)), torch.randn(4, WIDTH)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 3, WIDTH)


def _plant(model: nn.Module, at: int, bomb: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Put a bomb around the `at`-th module that is called (all but containers of modules)."""
    places = [(p, n, c) for p in model.modules() for n, c in p.named_children() if not isinstance(c, nn.ModuleList)]
    parent, name, child = places[at % len(places)]
    # A fused path would look for attributes of the module that stood here.
    for attribute in ("weight", "bias", "self_attn"):
        if hasattr(child, attribute) and isinstance(parent, (nn.MultiheadAttention, nn.TransformerEncoderLayer)):
            return bomb(model)
    setattr(parent, name, bomb(child))
    return model


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(["units", "transformer"]),
    at=st.integers(0, 20),
    steps=st.integers(1, 6),
    late=st.booleans(),
    error=st.sampled_from([RuntimeError, ValueError, KeyboardInterrupt, MemoryError, StopIteration]),
    train=st.booleans(),
    options=st.sampled_from(list(OPTIONS.values())),
)
def test_models_that_raise(
    kind: str, at: int, steps: int, late: bool, error: type[BaseException], train: bool, options: dict[str, Any]
) -> None:
    torch.manual_seed(at)
    net, batch = _net(kind)
    fuse = [steps]
    model = _plant(net, at, lambda inner: Bomb(inner, fuse, error, late=late)).train(train)
    assert changed(model, batch, **options) == []


@pytest.mark.parametrize("what", list(RESTLESS))
def test_a_restless_model_that_raises(what: str) -> None:
    torch.manual_seed(0)
    for steps in range(1, 5):
        fuse = [steps]
        model = nn.Sequential(RESTLESS[what](), Bomb(nn.Linear(WIDTH, WIDTH), fuse, RuntimeError, late=True)).train()
        assert changed(model, torch.randn(4, WIDTH)) == []


# The fingerprint itself ---------------------------------------------------------------------------------------------


def _touch_numpy(model: nn.Module) -> None:
    np.random.rand()  # noqa: NPY002  # the global one is meant


_TOUCHES: dict[str, Callable[[Restless], object]] = {
    "parameter": lambda m: m.inner.weight.data.add_(1e-6),
    "memory of a parameter": lambda m: setattr(m.inner.weight, "data", m.inner.weight.data.clone()),
    "negative zero": lambda m: m.scratch.neg_(),
    "buffer": lambda m: m.norm.num_batches_tracked.add_(1),
    "gradient": lambda m: setattr(m.inner.weight, "grad", torch.zeros_like(m.inner.weight)),
    "mode": lambda m: m.norm.train(not m.norm.training),
    "requires_grad": lambda m: m.inner.bias.requires_grad_(requires_grad=False),
    "forward hook": lambda m: m.inner.register_forward_hook(lambda *a: None),
    "backward hook": lambda m: m.inner.register_full_backward_hook(lambda *a: None),
    "tensor hook": lambda m: m.inner.weight.register_hook(lambda g: g),
    "attribute": lambda m: setattr(m, "more", 1),
    "inside a list": lambda m: m.history.append(1),
    "inside a dict": lambda m: m.cache.update(a=1),
    "module": lambda m: setattr(m, "outer", nn.Linear(WIDTH, WIDTH)),
    "torch's generator": lambda m: torch.rand(1),
    "python's generator": lambda m: random.random(),
    "numpy's generator": _touch_numpy,
}


@pytest.mark.parametrize("what", list(_TOUCHES))
def test_the_fingerprint_sees(what: str) -> None:
    model = Restless()
    before = state(model)
    assert differences(before, state(model)) == []
    _TOUCHES[what](model)
    assert differences(before, state(model)) != []
