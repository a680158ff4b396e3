"""An inspection leaves no trace: on public models, on models that change themselves, on models that raise."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import skipway
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


# What modules hold beside parameters and buffers ----------------------------------------------------------------------


class Position:
    def __init__(self) -> None:
        self.count = 0
        self.held: list[Tensor] = []


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Remembering(nn.Module):
    """Writes to whatever a module can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.cache, self.part = torch.zeros(4, 8), torch.zeros(2, 4, 8)[0]
        self.tables = {"cache": [torch.zeros(4, 8)]}
        self.nested = [[0], {"n": 0}]
        self.position, self.slotted = Position(), Slotted()
        self.numpy, self.python = np.random.default_rng(0), random.Random(0)
        self.legacy = np.random.RandomState(0)
        self.torch = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.down(self.up(self.norm(x)).relu())
        self.cache[:] = self.part[:] = y
        self.tables["cache"][0].copy_(y.detach())
        self.nested[0][0] += 1  # type: ignore[index]
        self.nested[1]["n"] += 1  # type: ignore[call-overload, index]
        self.position.count += 1
        self.position.held.append(y)
        self.slotted.count += 1
        noise = self.numpy.normal() + self.python.gauss(0, 1) + self.legacy.normal()
        return y + 0.01 * float(noise) + 0.01 * torch.randn(8, generator=self.torch)

    def facts(self) -> tuple[object, ...]:
        return (
            self.cache.tolist(), self.part.tolist(), self.cache.requires_grad, self.tables["cache"][0].tolist(),
            repr(self.nested), self.position.count, len(self.position.held), self.slotted.count,
            str(self.numpy.bit_generator.state), self.python.getstate(), str(self.legacy.get_state()),
            self.torch.get_state().tolist(),
        )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"structure_only": True, "profile": "fast"}, {"profile": "thorough"}])
def test_whatever_a_module_holds_is_put_back(options: dict[str, Any]) -> None:
    model = nn.Sequential(*[Remembering() for _ in range(3)])
    before = [block.facts() for block in model]  # type: ignore[operator]
    found = skipway.inspect(model, torch.randn(4, 8), **options)
    assert len(found.units) == 3
    assert [block.facts() for block in model] == before  # type: ignore[operator]


class Cached(nn.Module):
    """Reads and extends a cache that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2))

    def forward(self, x: Tensor, cache: Position) -> Tensor:
        for layer in self.layers:
            x = x + layer(x + sum(cache.held, torch.zeros(8)))
        cache.held.append(x.mean(0))
        cache.count += 1
        return x


def test_objects_in_the_batch_are_left_as_they_are() -> None:
    cache = Position()
    cache.held.append(torch.randn(8))
    held = cache.held[0].clone()
    found = skipway.inspect(Cached(), (torch.randn(4, 8), cache))
    assert len(found.units) == 2
    assert all(unit.proof_error is not None for unit in found.units)
    assert (cache.count, len(cache.held)) == (0, 1)
    assert torch.equal(cache.held[0], held)


def test_a_monitored_model_that_writes_to_plain_tensors_trains_as_without() -> None:
    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(3))
            self.codes = torch.randn(5, 8)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x)
            nearest = torch.cdist(x, self.codes).argmin(-1)
            self.codes.index_add_(0, nearest, (x - self.codes[nearest]).detach(), alpha=0.05)
            return x

    def trained(watch: bool) -> tuple[float, float]:
        torch.manual_seed(0)
        model = Codes()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        monitor = skipway.Monitor(model, every=2, optimizer=optimizer) if watch else None
        for _ in range(4):
            loss = model(torch.randn(16, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if monitor is not None:
                monitor.step()
        if monitor is not None:
            monitor.close()
        return loss.item(), model.codes.sum().item()

    assert trained(True) == trained(False)


def test_first_use_leaves_pythons_generator_where_it_was() -> None:
    code = (
        "import random, torch, skipway; random.seed(0); a = random.random(); random.seed(0);"
        "skipway.inspect(torch.nn.Linear(2, 2), torch.randn(2, 2)); assert random.random() == a"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603  # our own text


def test_a_cache_that_is_still_empty_is_not_filled() -> None:
    model, x = Cached().eval(), torch.randn(4, 8)
    plain = model(x, Position())
    for use in (skipway.inspect, skipway.lesion):
        cache = Position()
        use(model, (x, cache))
        assert (cache.count, cache.held) == (0, [])
    cache = Position()
    with skipway.what_if(model, {"*": skipway.Alteration()}):
        assert torch.equal(model(x, cache), plain)
    assert (cache.count, len(cache.held)) == (1, 1)
    cache = Position()
    with skipway.Monitor(model.train(), every=1):
        assert torch.equal(model(x, cache), plain)
    assert (cache.count, len(cache.held)) == (1, 1)
