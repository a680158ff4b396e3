"""Tests along a training, and what they leave as it was."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from skipway.errors import ModelRunError, SkipwayError
from skipway.train.fit import resume, run_spec
from skipway.train.run import load_run
from train.runs import lines, open_once, tiny

if TYPE_CHECKING:
    from pathlib import Path


class Small(nn.Module):
    """A net with a norm; in eval mode it may take no more than so many samples at a time."""

    def __init__(self, most: int = 10_000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)
        self.most = most
        self.batches: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.batches.append(len(x))
            if len(x) > self.most:
                raise RuntimeError("not enough memory")
        out: Tensor = self.last(self.norm(self.first(x.flatten(1))).relu())
        return out


SPEC = tiny("module:Small", steps=4, batch_size=32)


def test_what_was_trained_outlives_a_test_that_fails(tmp_path: Path) -> None:
    data = open_once(SPEC.data)
    with pytest.raises(ModelRunError, match="failed in the test behind step 4, in eval mode: RuntimeError: not enough"):
        run_spec(SPEC, tmp_path / "run", module=Small(most=50), data=data)
    assert load_run(tmp_path / "run").status != "finished"
    went_on = resume(tmp_path / "run", module=Small(), data=data)
    undisturbed = run_spec(SPEC, tmp_path / "twin", module=Small(), data=data)
    assert lines(went_on) == lines(undisturbed)
    assert went_on.result["test_error"] == undisturbed.result["test_error"]


def test_a_test_behind_a_checkpoint_is_made_again(tmp_path: Path) -> None:
    # Killed between the checkpoint and the line of the test: the run has both in the end, in order.
    spec = tiny("module:Small", steps=6, batch_size=32, test_every=3, checkpoint_every=3)
    data = open_once(spec.data)

    class Killed(Small):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training and len(x) > 2:  # not the samples that are tried before
                raise KeyboardInterrupt
            return super().forward(x)

    with pytest.raises(KeyboardInterrupt):
        run_spec(spec, tmp_path / "run", module=Killed(), data=data)
    went_on = resume(tmp_path / "run", module=Small(), data=data)
    undisturbed = run_spec(spec, tmp_path / "twin", module=Small(), data=data)
    assert lines(went_on) == lines(undisturbed)
    assert [line["step"] for line in lines(went_on) if "test_error" in line] == [3, 6]


def test_a_test_takes_no_more_memory_than_a_small_batch_allows(tmp_path: Path) -> None:
    net = Small()
    run_spec(tiny("module:Small", steps=1, batch_size=8), tmp_path / "run", module=net, data=open_once(SPEC.data))
    assert max(net.batches) == 32


@pytest.mark.parametrize("every", [1, 10, 20, 60])
def test_the_training_loss_is_that_of_the_last_fifth_of_a_short_run(tmp_path: Path, every: int) -> None:
    spec = tiny("module:Small", steps=61, log_every=every)
    run = run_spec(spec, tmp_path / "run", module=Small(), data=open_once(spec.data))
    steps = run_spec(
        tiny("module:Small", steps=61), tmp_path / "twin", module=Small(), data=open_once(spec.data)
    ).metrics()
    losses = [line["loss"] for line in steps if "loss" in line]
    assert len(losses) == 61
    assert run.result["train_loss"] == pytest.approx(sum(losses[-12:]) / 12, rel=1e-12)


def test_the_training_loss_is_that_of_the_last_fifty_steps(tmp_path: Path) -> None:
    spec = tiny("module:Small", steps=300, batch_size=8)
    run = run_spec(spec, tmp_path / "run", module=Small(), data=open_once(spec.data))
    losses = [line["loss"] for line in run.metrics() if "loss" in line]
    assert run.result["train_loss"] == pytest.approx(sum(losses[-50:]) / 50, rel=1e-12)


def test_a_run_that_is_stopped_in_python_says_how_to_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stops(Small):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and int(self.norm.num_batches_tracked) == 2:  # type: ignore[arg-type]
                signal.raise_signal(signal.SIGINT)
            return super().forward(x)

    spec = tiny("module:Stops", steps=9)
    run = run_spec(spec, tmp_path / "run", module=Stops(), data=open_once(spec.data))
    how = f"skipway.resume({str(tmp_path / 'run')!r}, module=Stops(…))"
    assert run.status == "stopped"
    assert f"stopped at step 3; to go on: {how}" in caplog.text
    with pytest.raises(SkipwayError) as caught:
        run_spec(spec, tmp_path / "run", module=Stops(), data=open_once(spec.data))
    assert str(caught.value).endswith(f"try: {how}")


def test_the_training_loss_of_a_run_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny("module:Small", steps=30, log_every=20, checkpoint_every=15)
    data = open_once(spec.data)

    def stop(_net: Any, x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    seen = {"steps": 0}
    forward = Small.forward

    def until(net: Small, x: Tensor) -> Tensor:
        seen["steps"] += net.training
        return stop(net, x) if seen["steps"] == 20 else forward(net, x)

    monkeypatch.setattr(Small, "forward", until)
    with pytest.raises(KeyboardInterrupt):
        run_spec(spec, tmp_path / "run", module=Small(), data=data)
    monkeypatch.undo()
    went_on = resume(tmp_path / "run", module=Small(), data=data)
    undisturbed = run_spec(spec, tmp_path / "twin", module=Small(), data=data)
    assert went_on.result["train_loss"] == undisturbed.result["train_loss"]


@pytest.mark.parametrize("inspected", [False, True])
def test_a_norm_in_eval_mode_stays_frozen(tmp_path: Path, inspected: bool) -> None:
    net = Small()
    net.norm.eval().requires_grad_(False)
    before = {key: value.clone() for key, value in net.norm.state_dict().items()}
    spec = tiny("module:Small", steps=4, test_every=2, inspect=inspected)
    run_spec(spec, tmp_path / "run", module=net, data=open_once(spec.data))
    assert not net.norm.training
    assert all(torch.equal(value, before[key]) for key, value in net.norm.state_dict().items())


def test_a_net_in_eval_mode_is_trained_whole(tmp_path: Path) -> None:
    net = Small().eval()
    run_spec(SPEC, tmp_path / "run", module=net, data=open_once(SPEC.data))
    assert int(net.norm.num_batches_tracked) == 4  # type: ignore[arg-type]
