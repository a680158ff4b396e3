"""The monitor's numbers are those of an inspection, and the training does not notice it."""

from __future__ import annotations

import copy
import gc
import logging
import math
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import skipway
from diagnostics.monitor_nets import Images, L, N, Tokens, images, loss_of, same, state, tokens, train
from skipway.diagnostics.monitor import Monitor
from skipway.errors import SkipwayError

NAMES = ("stream_rms", "branch_rms", "shortcut_rms", "out_rms", "grad_stream", "similarity")
CASES = {"tokens": (Tokens, tokens), "images": (Images, images)}
LOGS = (
    "log of type int\nexpected: an object with log(dict, step), log_metrics(dict, step) or add_scalar(name, value, "
    "step), or a function of a dict and a step"
)
BATCHES = (
    "batch of type int\nexpected: what the model is called with: a tensor, a tuple of positional arguments or a dict "
    "of keyword arguments"
)


def one_step(model: nn.Module, x: object, **options: object) -> Monitor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, optimizer=optimizer, **options)  # type: ignore[arg-type]
    loss_of(model(x)).backward()
    optimizer.step()
    monitor.step()
    monitor.close()
    return monitor


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_numbers_are_those_of_an_inspection(case: str, mode: str) -> None:
    make, batch = CASES[case]
    model = make().train(mode == "train")
    torch.manual_seed(3)  # dropout
    inspected = skipway.inspect(model, batch(), loss_of)
    torch.manual_seed(3)
    monitor = one_step(model, batch())
    assert len(monitor.history) == 1
    assert monitor.latest is not None
    assert (
        [u.path for u in monitor.units] == [u.path for u in inspected.units] == [u.path for u in monitor.latest.units]
    )
    assert len(monitor.units) == (2 * L if case == "tokens" else L)
    for unit, reading in zip(inspected.units, monitor.latest.units, strict=True):
        found = {name: getattr(reading, name) for name in NAMES}
        assert found == {name: pytest.approx(getattr(unit.numbers, name), rel=1e-6) for name in NAMES}
        assert reading.branch_share == pytest.approx(unit.numbers.branch_rms / unit.numbers.shortcut_rms)


def test_a_batch_before_the_first_step_changes_no_number() -> None:
    found = []
    for options in ({}, {"batch": tokens(5)}, {"batch": (tokens(5),)}, {"batch": {"x": tokens(5)}}):
        torch.manual_seed(3)
        monitor = one_step(Tokens(), tokens(), **options)
        found.append(monitor.latest)
    assert found[0] == found[1] == found[2] == found[3]


def test_the_first_samples_are_exact() -> None:
    """Of 4 samples 2 are looked at: their numbers by hand, also where rows of tokens are one dimension."""

    class Rows(Tokens):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.flatten(0, 1))

    for make in (Tokens, Rows):
        model = make().double().eval()
        x = tokens(dtype=torch.float64)
        stream = model.stem(x)
        stream.retain_grad()
        y = stream
        for block in model.blocks:
            y = block(y)
        loss_of(model.head(y)).backward()
        model.zero_grad()
        latest = one_step(model, x, samples=2).latest
        assert latest is not None
        assert latest.units[0].stream_rms == pytest.approx(float(stream.detach()[:2].square().mean().sqrt()), rel=1e-12)
        assert stream.grad is not None
        assert latest.units[0].grad_stream == pytest.approx(float(stream.grad[:2].norm()), rel=1e-9)


def test_samples_along_the_second_dimension() -> None:
    class First(Tokens):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.transpose(0, 1))  # (T,N,D)

    model = First().eval()
    stream = model.stem(tokens())[:2].detach()
    latest = one_step(model, tokens(), samples=2).latest
    assert latest is not None
    assert latest.units[0].stream_rms == pytest.approx(float(stream.square().mean().sqrt()), rel=1e-6)


def test_batches_of_other_sizes_are_measured() -> None:
    monitor = train(Tokens(), lambda step: tokens(step, n=N + step), 3, every=1)
    assert monitor is not None
    assert [all(u.stream_rms and u.grad_stream for u in r.units) for r in monitor.history] == [True] * 3


def test_update_over_weight_by_hand() -> None:
    model = Tokens()
    before = copy.deepcopy(model.blocks[1].branch)
    latest = one_step(model, tokens()).latest
    assert latest is not None
    pairs = list(zip(before.parameters(), model.blocks[1].branch.parameters(), strict=True))
    moved = math.sqrt(sum(float((a - b).detach().double().square().sum()) for a, b in pairs))
    size = math.sqrt(sum(float(a.detach().double().square().sum()) for a, _ in pairs))
    assert latest.units[2].update_over_weight == pytest.approx(moved / size, rel=1e-5)
    assert latest.units[3].update_over_weight == latest.units[2].update_over_weight  # the same weights


def test_without_an_optimizer_updates_are_unknown() -> None:
    model = Tokens()
    monitor = Monitor(model)
    loss_of(model(tokens())).backward()
    monitor.step()
    assert monitor.latest is not None
    assert {u.update_over_weight for u in monitor.latest.units} == {None}
    assert not [key for key in monitor.latest.summary() if "update" in key]
    monitor.close()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("every", [1, 7])
def test_training_goes_on_bit_by_bit(case: str, every: int) -> None:
    make, batch = CASES[case]
    plain, watched = make(), make()
    train(plain, batch, monitored=False)
    monitor = train(watched, batch, every=every)
    assert monitor is not None
    assert [r.step for r in monitor.history] == list(range(0, 20, every))
    assert same(state(plain), state(watched))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))


def attributes(model: nn.Module) -> list[dict[str, object]]:
    return [dict(vars(m)) for m in model.modules()]


def test_the_model_is_as_it_was_between_measured_steps_and_behind_the_last() -> None:
    model = Tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, scale = attributes(model), torch.amp.GradScaler.scale
    with Monitor(model, every=3, optimizer=optimizer) as monitor:
        for step in range(5):
            loss_of(model(tokens(step))).backward()
            optimizer.step()
            monitor.step()
            waits = (step + 1) % 3 == 0
            assert ("_compiled_call_impl" in vars(model)) is waits
    for was, now in zip(before, attributes(model), strict=True):
        assert was.keys() == now.keys()
        assert all(was[k] is now[k] for k in was if k != "_parameters")
    assert not optimizer._optimizer_step_pre_hooks
    assert torch.amp.GradScaler.scale is scale
    assert vars(nn.Module)["_compiled_call_impl"] is None


def test_an_error_leaves_nothing_behind() -> None:
    model = Tokens()
    with pytest.raises(KeyError), Monitor(model):
        raise KeyError
    assert "_compiled_call_impl" not in vars(model)


def test_copies_and_pickles_of_a_model_know_no_monitor() -> None:
    model = Tokens()
    monitor = Monitor(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301  # its own
        loss_of(other(tokens())).backward()
    monitor.step()
    assert not monitor.history
    loss_of(model(tokens())).backward()
    monitor.step()
    assert [r.step for r in monitor.history] == [1]  # it had waited on
    monitor.close()


def test_validation_and_inspections_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tokens()
    monitor = Monitor(model)
    skipway.inspect(model, tokens(1), loss_of)
    with torch.no_grad():
        model(tokens(2))
    monitor.step()
    torch.manual_seed(0)
    loss_of(model(tokens())).backward()
    monitor.step()
    assert len(monitor.history) == 1
    torch.manual_seed(0)
    assert monitor.latest is not None
    assert monitor.latest.units[0].stream_rms == skipway.inspect(model, tokens(), loss_of).units[0].numbers.stream_rms
    monitor.close()


def test_two_monitors_on_one_model_leave_in_any_order() -> None:
    plain, model = Tokens(), Tokens()
    first = Monitor(model, every=1)
    second = Monitor(model, every=1)
    for step in range(2):
        outputs = []
        for other in (plain, model):
            torch.manual_seed(step)
            outputs.append(other(tokens()))
            loss_of(outputs[-1]).backward()
        assert torch.equal(*outputs)
        first.step()
        second.step()
    assert [r.step for r in first.history] == [1]  # the second was reading when it should have looked for units
    assert [r.step for r in second.history] == [0, 1]
    assert first.history[-1] == second.history[-1]
    first.close()
    loss_of(model(tokens())).backward()
    second.step()
    second.close()
    assert len(second.history) == 3
    assert "_compiled_call_impl" not in vars(model)


def test_nothing_keeps_a_measured_graph_alive() -> None:
    class Mark:
        pass

    seen: list[weakref.ref[Mark]] = []

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark = Mark()  # lives as long as this node of the graph
            seen.append(weakref.ref(ctx.mark))
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    model = Tokens()
    monitor = Monitor(model, every=1, batch=tokens())
    for step in range(3):
        loss_of(model(Marked.apply(tokens(step).requires_grad_()))).backward()
        monitor.step()
    monitor.close()
    gc.collect()
    assert [s() for s in seen] == [None] * 3


def test_gradients_of_leaves_keep_no_hook() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = Tokens().blocks

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.branches:
                x = block(x)
            return x

    x = tokens().requires_grad_()
    latest = one_step(Bare(), x).latest
    assert latest is not None
    assert latest.units[0].grad_stream is not None
    assert not x._backward_hooks


def test_keys_and_steps_that_are_logged() -> None:
    lines: list[tuple[int, dict[str, float]]] = []
    train(Tokens(), tokens, 6, every=5, log=lambda numbers, step: lines.append((step, numbers)))
    assert [step for step, _ in lines] == [0, 5]
    assert list(lines[0][1]) == list(lines[1][1]) == [
        "skipway/stream_rms/first", "skipway/stream_rms/last", "skipway/stream_rms/max", "skipway/branch_share/min",
        "skipway/branch_share/median", "skipway/branch_share/max", "skipway/grad_first_over_last",
        "skipway/similarity/last", "skipway/update_over_weight/median", "skipway/update_over_weight/max",
    ]  # fmt: skip
    assert all(isinstance(v, float) for v in lines[0][1].values())


def test_what_can_take_the_numbers() -> None:
    class Like:
        def __init__(self) -> None:
            self.got: list[object] = []

    class Wandb(Like):
        def log(self, data: dict[str, float], step: int | None = None) -> None:
            self.got.append((step, len(data)))

    class Lightning(Like):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.got.append((step, len(metrics)))

    class TensorBoard(Like):
        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
            self.got.append((global_step, tag))

    for kind, count in ((Wandb, 1), (Lightning, 1), (TensorBoard, 10)):
        log = kind()
        train(Tokens(), tokens, 1, log=log)
        assert len(log.got) == count
        assert {entry[0] for entry in log.got} == {0}  # type: ignore[index]


def test_frames_and_the_length_of_history() -> None:
    monitor = train(Tokens(), tokens, 6, every=1, keep=2)
    assert monitor is not None
    assert [r.step for r in monitor.history] == [4, 5]
    frame = monitor.history[-1].to_frame()
    assert list(frame["path"]) == [u.path for u in monitor.units]
    assert list(frame.columns)[:4] == ["step", "path", "on_stream", "stream_rms"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, "every=0\nexpected: a whole number from 1"),
        ({"samples": 1.5}, "samples=1.5\nexpected: a whole number from 1"),
        ({"keep": True}, "keep=True\nexpected: a whole number from 1"),
        ({"log": 3}, LOGS),
        ({"optimizer": "sgd"}, "optimizer of type str\nexpected: a torch.optim.Optimizer, or several in a list"),
        ({"batch": 3}, BATCHES),
    ],
)  # fmt: skip
def test_what_is_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(SkipwayError) as caught:
        Monitor(Tokens(), **options)  # type: ignore[arg-type]
    assert str(caught.value) == text
    with pytest.raises(SkipwayError, match=r"model of type int\nexpected: a torch\.nn\.Module"):
        Monitor(3)  # type: ignore[arg-type]


def test_errors_of_the_model_pass_and_the_next_step_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Tokens):
        fails = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fails:
                raise ZeroDivisionError("mine")
            return super().forward(x)

    model = Fails()
    monitor = Monitor(model, every=1, batch=None)
    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        model(tokens())
    assert caplog.messages == []
    model.fails = False
    monitor.step()
    loss_of(model(tokens())).backward()
    monitor.step()
    assert [r.step for r in monitor.history] == [1]
    model.fails = True
    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        model(tokens())
    assert monitor.active
    monitor.close()


def test_a_model_without_units_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    monitor = train(model, tokens, 3, every=1)
    assert monitor is not None
    assert caplog.messages == ["the monitor switches itself off at step 0: no residual unit was found"]
    assert not monitor.history


def test_a_log_that_fails_does_not_stop_the_training(caplog: pytest.LogCaptureFixture) -> None:
    def log(_numbers: dict[str, float], _step: int) -> None:
        raise ConnectionError("no network")

    plain, model = Tokens(), Tokens()
    train(plain, tokens, 4, monitored=False)
    monitor = train(model, tokens, 4, every=1, log=log)
    assert monitor is not None
    assert len(monitor.history) == 1
    assert caplog.messages == [
        "the monitor switches itself off at step 0: measuring or logging failed: ConnectionError: no network"
    ]
    assert same(state(plain), state(model))


@pytest.mark.parametrize("where", ["before", "after", "gradient"])
def test_faults_of_its_own_do_not_stop_the_training(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from skipway.diagnostics.taps import Reader, Scalars

    def broken(*_: object) -> None:
        raise IndexError("mine")

    monkeypatch.setattr(Scalars if where == "gradient" else Reader, where, broken)
    plain, model = Tokens(), Tokens()
    train(plain, tokens, 4, monitored=False)
    monitor = train(model, tokens, 4, every=1)
    assert monitor is not None
    assert not monitor.active
    assert not monitor.history
    assert caplog.messages == [
        "the monitor switches itself off at step 0: measuring or logging failed: IndexError: mine"
    ]
    assert same(state(plain), state(model))


def test_a_model_that_cannot_be_recorded_trains_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("cannot\nrecord")

    monkeypatch.setattr("skipway.diagnostics.monitor.monitor.locate", broken)
    model = Tokens()
    monitor = train(model, tokens, 2)
    assert monitor is not None
    assert not monitor.active
    assert caplog.messages == [
        "the monitor switches itself off at step 0: the residual units could not be found: RuntimeError: cannot"
    ]


def test_a_model_that_is_not_called_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    model = Tokens()
    train(model, tokens, 3, every=1, call=model.forward)
    (text,) = caplog.messages
    assert text == (
        "step 0 is not measured: the model was not called with gradients; call model(x), not model.forward(x), and "
        "step() once behind each step of the optimizer"
    )
