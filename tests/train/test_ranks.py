"""Several processes: the same losses as one with the same global batch, the same bits when resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from skipway.spec import DataSpec, RunSpec
from skipway.train.fit import resume, run_spec
from skipway.train.run import Run
from train.runs import ADAMW, lines, open_once, tiny, weights

if TYPE_CHECKING:
    from train.conftest import Heard

HERE = Path(__file__).parent
GPT = tiny(
    "gpt_nano", data=DataSpec(name="reverse", test_size=101), recipe=ADAMW, batch_size=16, accelerator="cpu",
    checkpoint_every=2,
)  # fmt: skip
# In float64, since 50 steps of this net make 1.7e-5 of float32's rounding.
VIT = tiny(
    "vit_tiny", recipe=ADAMW, batch_size=16, precision="64-true", accelerator="cpu", checkpoint_every=2, log_every=3
)


def torchrun(*command: object, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(  # noqa: S603  # our own command
        [*launcher, *map(str, command)], capture_output=True, text=True, timeout=400, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)},
    )  # fmt: skip


def together(folder: Path, *jobs: dict[str, Any], ranks: int = 2) -> str:
    """Carry out jobs under one launch; what was printed."""
    file = folder / "jobs.json"
    file.write_text(json.dumps([{**job, "spec": job["spec"].to_dict()} for job in jobs]))
    done = torchrun(HERE / "ranks.py", folder, file, ranks=ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(run: Run) -> torch.Tensor:
    return torch.tensor([line["loss"] for line in run.metrics() if "loss" in line])


def alone(spec: RunSpec, folder: Path) -> Run:
    path = folder / f"alone-{spec.strategy}"
    return run_spec(replace(spec, strategy="auto"), path, data=open_once(spec.data))


def jobs_of(name: str, spec: RunSpec) -> list[dict[str, Any]]:
    """The run undisturbed, and the same stopped in its fourth step and resumed."""
    return [
        {"name": name, "spec": spec},
        {"name": f"{name}-cut", "spec": spec, "stop_at": 3, "status": "stopped"},
        {"name": f"{name}-cut", "spec": spec, "resume": True},
    ]


def compare(folder: Path, name: str, spec: RunSpec, bound: float) -> None:
    run, cut, single = Run(folder / name), Run(folder / f"{name}-cut"), alone(spec, folder)
    assert run.environment["devices"] == 2
    assert single.environment["devices"] == 1
    torch.testing.assert_close(losses(run), losses(single), rtol=0, atol=bound)
    assert losses(single)[0] != losses(single)[-1]
    assert run.result["test_loss"] == pytest.approx(single.result["test_loss"], abs=bound)
    # The test set is counted once, whatever the number of ranks.
    assert run.result["test_error"] == pytest.approx(single.result["test_error"], abs=0.3)
    assert lines(cut) == lines(run)
    assert weights(cut) == weights(run)
    run.model()  # loads into a plain model


def test_two_ranks(tmp_path: Path, heard: Heard) -> None:
    """DDP and FSDP2 on the processor over gloo; refusals reach every rank; one process goes on alone."""
    fsdp = replace(GPT, strategy="fsdp2")
    said = together(
        tmp_path,
        *jobs_of("ddp", replace(GPT, strategy="ddp")),
        *jobs_of("fsdp2", fsdp),
        {"name": "ddp", "spec": GPT},
        {"name": "ddp-moved", "spec": replace(GPT, strategy="ddp"), "stop_at": 3, "status": "stopped"},
        {"name": "fsdp2-moved", "spec": fsdp, "stop_at": 3, "status": "stopped"},
    )
    compare(tmp_path, "ddp", replace(GPT, strategy="ddp"), 1e-5)
    compare(tmp_path, "fsdp2", fsdp, 1e-4)
    assert {line for line in said.splitlines() if line.startswith("REFUSED")} == {
        f"REFUSED ddp: the first process cannot use {tmp_path / 'ddp'}",
        f"REFUSED ddp: {tmp_path / 'ddp'} holds another run, finished",
    }
    assert "Warning" not in said
    for name in ("ddp", "fsdp2"):
        moved = resume(tmp_path / f"{name}-moved", data=open_once(GPT.data), listener=heard)
        torch.testing.assert_close(losses(moved), losses(Run(tmp_path / name)), rtol=0, atol=1e-5)
        assert moved.environment["devices"] == 2
        assert moved.environment["regrouped"] == [{"step": 4, "devices": 1}]
        moved.model()
    assert (
        heard.notes
        == ["goes on with 1 process, was 2: each step has the same samples, in the same order and equally augmented"]
        * 2
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("spec", [GPT, VIT], ids=["gpt_nano", "vit_tiny"])
def test_fifty_steps_on_two_ranks(spec: RunSpec, tmp_path: Path) -> None:
    """Losses equal to 1e-5 over 50 steps."""
    long = replace(spec, recipe=replace(spec.recipe, steps=50), checkpoint_every=20, log_every=1, strategy="ddp")
    together(tmp_path, *jobs_of("ddp", long))
    compare(tmp_path, "ddp", long, 1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_the_command_line_under_torchrun(strategy: str, tmp_path: Path) -> None:
    """The launcher says how many processes there are; no option is needed besides the strategy."""
    path = tmp_path / "run"
    options = ["--data", "reverse", "--steps", "4", "--batch", "16", "--accelerator", "cpu", "--strategy", strategy]
    done = torchrun("-m", "skipway", "train", "gpt_nano", *options, "--out", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test error") == 1
    run = Run(path)
    assert (run.status, run.environment["devices"]) == ("finished", 2)
    assert run.inspection("start") is not None
    assert run.inspection("end") is not None


@pytest.mark.exhaustive
def test_two_processes_that_nobody_launched(tmp_path: Path) -> None:
    """``--devices 2`` alone starts the second process itself."""
    options = ["--data", "reverse", "--steps", "4", "--batch", "16", "--accelerator", "cpu", "--no-inspect"]
    done = subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-m", "skipway", "train", "gpt_nano", *options, "--devices", "2", "--strategy", "ddp",
         "--out", "run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (Run(tmp_path / "run").status, Run(tmp_path / "run").environment["devices"]) == ("finished", 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_divergence_ends_every_rank(strategy: str, tmp_path: Path) -> None:
    recipe = replace(GPT.recipe, optimizer=replace(GPT.recipe.optimizer, lr=1e30), clip_norm=None)
    spec = replace(GPT, recipe=recipe, strategy=strategy)
    together(tmp_path, {"name": "run", "spec": spec, "status": "diverged"})
    result = Run(tmp_path / "run").result
    assert result["status"] == "diverged"
    assert bool(result["where"]) == (strategy == "ddp")


@pytest.mark.exhaustive
def test_running_statistics_are_those_of_the_first_rank(tmp_path: Path) -> None:
    """Whatever the strategy, and behind a resume."""
    net = tiny("resnet8", batch_size=16, accelerator="cpu", checkpoint_every=2, test_every=1)
    sharded = replace(net, strategy="fsdp2")
    together(tmp_path, {"name": "ddp", "spec": replace(net, strategy="ddp")}, *jobs_of("fsdp2", sharded))
    runs = [Run(tmp_path / name) for name in ("ddp", "fsdp2", "fsdp2-cut")]
    assert lines(runs[1]) == lines(runs[2])
    ddp, fsdp2 = (torch.tensor([m["test_loss"] for m in run.metrics() if "test_loss" in m]) for run in runs[:2])
    torch.testing.assert_close(fsdp2, ddp, rtol=0, atol=1e-4)
