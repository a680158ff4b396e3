"""A monitor beside others: wrapped optimizers, scalers that are switched off, what-if runs."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import skipway


class Net(nn.Module):
    def __init__(self, *, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(3))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x * self.factor


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another, without what `Optimizer.__init__` sets up, as launchers have it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class Hostile(torch.optim.SGD):
    def register_step_pre_hook(self, hook: Any) -> Any:
        raise RuntimeError("no hooks here")


def test_the_optimizer_inside_a_wrapper_is_watched() -> None:
    net = Net()
    optimizer = Wrapped(torch.optim.SGD(net.parameters(), 0.1))
    with skipway.Monitor(net, every=1, optimizer=optimizer) as monitor:
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        monitor.step()
    assert all(unit.update_over_weight for unit in monitor.history[0].units)


def test_an_optimizer_that_takes_no_hooks_does_not_stop_a_training(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    with (
        caplog.at_level(logging.WARNING),
        skipway.Monitor(net, every=1, optimizer=Hostile(net.parameters(), 0.1)) as monitor,
    ):
        net(torch.randn(4, 8)).square().mean().backward()
        monitor.step()
    assert "the optimizer cannot be watched: RuntimeError: no hooks here" in caplog.text


@pytest.mark.parametrize("scaled", [False, True])
def test_a_scaler_that_is_switched_off_is_none(scaled: bool) -> None:
    net = Net(factor=0.0)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with skipway.Monitor(net, every=1) as monitor:
        loss = net(torch.randn(4, 8)).square().sum(-1).sqrt().sum()  # no gradient at zero
        (scaler.scale(loss) if scaled else loss).backward()
        monitor.step()
    record = monitor.history[0]
    assert record.scale is None
    assert all(
        unit.grad_stream is not None and math.isnan(unit.grad_stream) for unit in record.units[1:]
    )  # the first reads the input
    assert [finding.rule for finding in monitor.findings] == ["non-finite"]


def test_a_monitor_that_is_closed_within_a_what_if_run_is_gone() -> None:
    net = Net()
    before = dict(vars(net))
    monitor = skipway.Monitor(net, every=1)
    with skipway.what_if(net, {"*": skipway.Alteration(branch=0.5)}):
        net(torch.randn(4, 8)).sum().backward()
        monitor.step()
        monitor.close()
    assert vars(net) == before


@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler
def test_compiled_code_runs_compiled_whatever_ends_first() -> None:
    ran = []

    def backend(graph: Any, _inputs: Any) -> Any:
        ran.append(graph)
        return graph.forward

    def compiled() -> bool:
        torch._dynamo.reset()
        ran.clear()
        torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
        return bool(ran)

    assert compiled()
    net = Net()
    monitor = skipway.Monitor(net, every=1)
    with skipway.what_if(net, {"*": skipway.Alteration(branch=0.5)}):
        net(torch.randn(4, 8)).sum().backward()
        monitor.step()
        monitor.close()
    assert compiled()
