"""The monitor in loops as people write them: mixed precision, accumulation, compiled, checkpointed, several ranks."""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import multiprocessing, nn

import skipway
from diagnostics.monitor_nets import Images, Tokens, images, loss_of, same, state, tokens, train
from skipway.diagnostics.monitor import Monitor

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("stream_rms", "branch_rms", "shortcut_rms", "out_rms", "grad_stream", "similarity")


def numbers(monitor: Monitor, at: int = 0) -> list[dict[str, float]]:
    return [{name: getattr(u, name) for name in NAMES} for u in monitor.history[at].units]


def expected(model: nn.Module, batch: torch.Tensor, *, seed: int = 3, factor: float = 1.0) -> list[Any]:
    """What an inspection finds, its gradients times a factor."""
    torch.manual_seed(seed)
    found = skipway.inspect(model, batch, loss_of).units
    rows = [{name: getattr(u.numbers, name) for name in NAMES} for u in found]
    return [pytest.approx({**row, "grad_stream": row["grad_stream"] * factor}, rel=1e-6) for row in rows]


def autocast_step(model: nn.Module, x: torch.Tensor, monitor: Monitor | None, scaler: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.zero_grad()
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model(x))
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    if monitor is not None:
        monitor.step()


@pytest.mark.parametrize("scaled", [False, True])
def test_bf16_autocast_with_and_without_a_scaler(scaled: bool) -> None:
    make = (lambda: torch.amp.GradScaler("cpu", init_scale=2.0**13)) if scaled else (lambda: None)
    model, plain = Images(), Images()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = expected(Images(), images())
    scaler, other = make(), make()
    with Monitor(model, every=2) as monitor:
        for step in range(4):
            autocast_step(model, images(step), monitor, scaler)
            autocast_step(plain, images(step), None, other)
    assert same(state(plain), state(model))
    assert [r.step for r in monitor.history] == [0, 2]
    assert [r.scale for r in monitor.history] == ([2.0**13] * 2 if scaled else [None] * 2)
    assert numbers(monitor) == wanted
    assert any(getattr(u, "dtype", "") == "bfloat16" for u in monitor.units)


def test_autocast_keeps_no_weights_that_were_cast_without_gradients() -> None:
    """Units are found within the training's own autocast: its cache would else cut the gradients of all weights off."""
    model = Tokens()
    with Monitor(model):
        autocast_step(model, tokens(), None)
    assert all(p.grad is not None for p in model.parameters())
    assert torch.is_autocast_cache_enabled()


def test_an_infinite_gradient_under_a_scaler_is_no_finding(caplog: pytest.LogCaptureFixture) -> None:
    model = Tokens()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with Monitor(model) as monitor:
        scaler.scale(1e5 * loss_of(model(tokens()))).backward()
        monitor.step()
    assert monitor.latest is not None
    assert any(not math.isfinite(u.grad_stream) for u in monitor.latest.units)
    assert monitor.findings == []
    assert caplog.messages == []


def test_scalers_derived_from_pytorchs_are_seen() -> None:
    class Own(torch.amp.GradScaler):
        def scale(self, outputs: Any) -> Any:
            return outputs * 8.0

    model = Tokens()
    torch.manual_seed(3)
    with Monitor(model) as monitor:
        loss = loss_of(model(tokens()))
        Own("cpu", enabled=False).scale(loss).backward()
        monitor.step()
    assert monitor.latest is not None
    assert monitor.latest.scale == 8.0
    assert numbers(monitor) == expected(Tokens(), tokens())
    assert "scale" in vars(Own)


def test_of_four_micro_batches_the_first_is_measured() -> None:
    def run(model: nn.Module, monitor: Monitor | None, optimizer: torch.optim.Optimizer) -> None:
        for step in range(3):
            optimizer.zero_grad()
            for micro in range(4):
                torch.manual_seed(3 + micro)
                (loss_of(model(tokens(10 * step + micro))) / 4).backward()
            optimizer.step()
            if monitor is not None:
                monitor.step()

    model, plain = Tokens(), Tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Monitor(model, every=2, optimizer=optimizer) as monitor:
        run(model, monitor, optimizer)
    run(plain, None, torch.optim.SGD(plain.parameters(), lr=0.05))
    assert same(state(plain), state(model))
    assert [r.step for r in monitor.history] == [0, 2]
    assert numbers(monitor) == expected(Tokens(), tokens(0), factor=0.25)
    assert all(u.update_over_weight for r in monitor.history for u in r.units)


@pytest.mark.parametrize("kind", ["reentrant", "non-reentrant"])
def test_checkpointed_parts_are_counted_once(kind: str) -> None:
    x = tokens().requires_grad_()  # else a re-entrant part at the start would have no gradient
    wanted = expected(Tokens(), tokens())
    model, plain = Tokens(kind), Tokens(kind)
    torch.manual_seed(3)
    with Monitor(model, every=1) as monitor:
        for step in range(2):
            for net in (plain, model):
                torch.manual_seed(3)
                loss_of(net(x)).backward()
            monitor.step()
            assert len(monitor.history) == step + 1
    assert numbers(monitor) == wanted
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


@pytest.fixture
def _fresh() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Counter:
    """A backend that runs graphs as they are and counts its calls."""

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, graph: Any, _inputs: Any) -> Any:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.ran += 1
            return graph(*args)

        return run


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("order", ["compile, then monitor", "monitor, then compile", "in place"])
def test_compiled_models(order: str) -> None:
    backend = Counter()
    plain, model = Images(), Images()
    train(plain, images, 6, monitored=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    in_place = None
    if order == "monitor, then compile":
        monitor = Monitor(model, every=3, optimizer=optimizer)
        run = torch.compile(model, backend=backend)
    elif order == "in place":
        run = model
        model.compile(backend=backend)
        in_place = vars(model)["_compiled_call_impl"]
        monitor = Monitor(model, every=3, optimizer=optimizer)
    else:
        run = torch.compile(model, backend=backend)
        monitor = Monitor(run, every=3, optimizer=optimizer)
    torch.manual_seed(1)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(run(images(step))).backward()
        optimizer.step()
        monitor.step()
    assert vars(model)["_compiled_call_impl"] is monitor._call  # step 6 would be measured
    monitor.close()
    assert vars(model).get("_compiled_call_impl") is in_place
    assert [r.step for r in monitor.history] == [0, 3]
    assert backend.compiled == 1
    assert backend.ran == 4
    assert same(state(plain), state(model))
    assert all(u.grad_stream and u.stream_rms for r in monitor.history for u in r.units)
    run(images())
    assert backend.ran == 5


@pytest.mark.usefixtures("_fresh")
def test_a_validation_run_between_is_compiled_and_the_step_after_it_measured() -> None:
    backend = Counter()
    model = Images()
    run = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Monitor(run, every=2, optimizer=optimizer) as monitor:
        for step in range(5):
            loss_of(run(images(step))).backward()
            optimizer.step()
            monitor.step()
            if step == 1:
                with torch.no_grad():
                    for k in range(3):
                        run(images(k))
    assert [r.step for r in monitor.history] == [0, 3, 4]
    assert backend.ran == 2 + 2


def rank(number: int, world: int, folder: str, compiled: bool) -> None:
    """A rank of a DDP training, with and without a monitor."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=world)
    results = []
    for monitored in (False, True):
        model = Images()
        inner = nn.parallel.DistributedDataParallel(model)
        run: Any = torch.compile(inner, backend="eager") if compiled else inner
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        monitor = Monitor(run, every=2, optimizer=optimizer) if monitored else None
        for step in range(5):
            optimizer.zero_grad()
            loss_of(run(images(10 * step + number))).backward()
            optimizer.step()
            if monitor is not None:
                monitor.step()
        results.append(state(model))
        if monitor is not None:
            monitor.close()
            assert [r.step for r in monitor.history] == [0, 2, 4]
            assert numbers(monitor) == expected(Images(), images(number))
    assert same(*results)
    torch.distributed.destroy_process_group()
    print("fine", file=sys.stderr)


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiled", [False, True])
def test_two_ranks(tmp_path: Path, compiled: bool) -> None:
    multiprocessing.spawn(rank, (2, str(tmp_path), compiled), nprocs=2)
