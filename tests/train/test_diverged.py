"""A loss or a weight that is not finite ends the run, names the place, and keeps the last good checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from skipway.errors import SkipwayError
from skipway.spec import OptimizerSpec
from skipway.train.checkpoint import load_checkpoint
from skipway.train.fit import resume, run_spec
from train.runs import lines, tiny
from train.zoo_of_training import Breaks

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def good_checkpoint(path: Path, step: int) -> None:
    snapshot = load_checkpoint(path / "checkpoint" / "state.safetensors")
    assert snapshot.position.step == step
    assert all(bool(t.isfinite().all()) for t in snapshot.model.values() if t.is_floating_point())


@pytest.mark.parametrize("log_every", [1, 4])
def test_a_module_that_divides_by_zero(log_every: int, heard, tmp_path: Path) -> None:
    spec = tiny("module:Breaks", checkpoint_every=2, steps=9, log_every=log_every)
    run = run_spec(spec, tmp_path / "run", module=Breaks(), listener=heard)
    assert run.status == "diverged"
    result = run.result
    assert heard.results == [result]
    assert (result["status"], result["steps"], result["checkpoint_step"]) == ("diverged", 4, 4)
    assert (result["where"], result["what"]) == ("inner", "div is the first not finite")
    assert str(result["loss"]) == "nan"
    assert result["test_error"] is None
    assert [line["step"] for line in lines(run)] == list(range(log_every, 5, log_every))
    good_checkpoint(run.path, 4)
    with pytest.raises(SkipwayError, match="has no final weights"):
        run.model()
    with pytest.raises(SkipwayError, match=r"is over \(diverged\)"):
        resume(run.path, module=Breaks())


def test_a_learning_rate_that_is_far_too_large(tmp_path: Path) -> None:
    """The weights are huge and finite behind the first step, and the first norm behind them overflows."""
    recipe = replace(tiny().recipe, optimizer=OptimizerSpec(lr=1e38, momentum=0.9))
    spec = tiny(recipe=recipe, steps=9, checkpoint_every=1)
    run = run_spec(spec, tmp_path / "run")
    assert run.status == "diverged"
    assert (run.result["where"], run.result["what"]) == (
        "stem.norm", "native_batch_norm is the first not finite",
    )  # fmt: skip
    good_checkpoint(run.path, 1)


def test_weights_that_overflow_in_the_last_step_are_no_result(tmp_path: Path) -> None:
    from torch import nn

    class Jumps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(x.flatten(1))
            return out

    # The gradient is finite and the step is not: 1e39 is beyond float32.
    recipe = replace(
        tiny().recipe, optimizer=OptimizerSpec(lr=1e39), schedule=replace(tiny().recipe.schedule, warmup=0)
    )
    run = run_spec(tiny("module:Jumps", recipe=recipe, steps=1), tmp_path / "run", module=Jumps())
    assert (run.status, run.result["where"], run.result["checkpoint_step"]) == ("diverged", "last", None)
    assert not run.folder.checkpoint_path.exists()
    assert not run.folder.weights_path.exists()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_the_place_is_found_in_every_precision(precision: str, tmp_path: Path) -> None:
    run = run_spec(tiny("module:Breaks", precision=precision), tmp_path / "run", module=Breaks())
    assert (run.status, run.result["where"]) == ("diverged", "inner")


def test_a_unit_is_named(tmp_path: Path) -> None:
    """One of our nets with a weight that becomes infinite on its way."""
    from skipway import create_model

    net = create_model("resnet8", in_channels=1)
    conv = net.stack.units[1].branches[0].conv2
    conv.register_forward_hook(lambda module, args, out: out * (float("inf") if conv.training else 1.0))
    run = run_spec(tiny("module:Net"), tmp_path / "run", module=net)
    assert (run.status, run.result["steps"]) == ("diverged", 0)
    assert run.result["where"].startswith("stack.units.1")
