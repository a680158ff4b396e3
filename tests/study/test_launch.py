"""Who carries runs out, by name; those of a Ray cluster."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file

import skipway
from skipway.cli import main
from skipway.errors import SkipwayError
from skipway.spec import DataSpec, RunSpec
from skipway.study.jobs import pool
from skipway.study.jobs.launch import LAUNCHERS, launcher_named
from skipway.study.jobs.worker import Job, Outcome, carry_out
from skipway.train.folder import RunFolder
from skipway.train.plan import plan_data

if TYPE_CHECKING:
    from pathlib import Path


def test_an_unknown_launcher_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SkipwayError, match=r"^unknown launcher 'rai'\nexpected: did you mean 'ray'\?$"):
        skipway.compare(["resnet8"], out=tmp_path / "c", launcher="rai")
    assert not (tmp_path / "c").exists()


def test_the_launcher_of_this_machine() -> None:
    assert LAUNCHERS == ("local", "ray")
    assert launcher_named("local") is pool.run_jobs


def test_a_missing_ray_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "skipway.study.jobs.ray_pool", raising=False)
    monkeypatch.delattr("skipway.study.jobs.ray_pool", raising=False)
    with pytest.raises(SkipwayError) as caught:
        skipway.compare(["resnet8"], out=tmp_path / "c", launcher="ray")
    assert str(caught.value) == (
        "the launcher 'ray' needs the package 'ray', which is not installed\ntry: pip install 'skipway[ray]'"
    )
    assert not (tmp_path / "c").exists()


def test_the_command_hands_runs_to_the_launcher_that_is_named(
    tmp_path: Path, in_process: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def named(name: str):
        asked.append(name)
        return pool.run_jobs  # which runs them in this process here

    monkeypatch.setattr("skipway.study.compare.launcher_named", named)
    out = tmp_path / "c"
    words = ["compare", "mlp2", "--steps", "2", "--batch", "8", "--seeds", "1", "--threads", "1", "--no-inspect"]
    assert main([*words, "--launcher", "ray", "--out", str(out)]) == 0
    assert in_process == ["mlp2 seed 0"]
    assert main(["compare", "--resume", str(out), "--launcher", "ray"]) == 0
    assert main(["compare", "--resume", str(out)]) == 0
    assert asked == ["ray", "ray", "local"]


def job(base: Path, model: str, seed: int, steps: int) -> Job:
    _, recipe = plan_data("digits", None, steps=steps, batch_size=16)
    name = f"{model}-{seed}"
    spec = RunSpec(
        model=model, seed=seed, data=DataSpec(), recipe=recipe, threads=1, checkpoint_every=10, inspect=False,
        accelerator="cpu",
    )  # fmt: skip
    return Job(name=name, spec=spec, folder=base / name, log=base / "logs" / f"{name}.txt")


def weights(one: Job) -> dict[str, object]:
    return {name: tensor.tolist() for name, tensor in load_file(RunFolder(one.folder).weights_path).items()}


def process_of(one: Job) -> int:
    return int(re.findall(r"process (\d+)", one.log.read_text())[-1])


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    one = job(tmp_path, "mlp2", 0, 2)
    one.log.parent.write_text("a file where the folder of logs would be")
    assert carry_out(one) == Outcome(
        status="failed",
        text=f"cannot write {one.log}: File exists\nexpected: a folder that you may write\ntry: another folder",
    )
    assert not one.folder.exists()


@pytest.fixture
def ray_jobs(monkeypatch: pytest.MonkeyPatch):
    """`run_jobs` of Ray, on a Ray of its own."""
    pytest.importorskip("ray", reason="the package ray is not installed (pip install 'skipway[ray]')")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    return launcher_named("ray")


@pytest.mark.exhaustive
def test_ray_gives_the_bits_of_this_machine_and_leaves_the_process_as_it_was(
    tmp_path: Path, ray_jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.chdir(tmp_path)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    there = [job(tmp_path / "ray", "resnet8", seed, 20) for seed in (0, 1)]
    here = [job(tmp_path / "here", "resnet8", seed, 20) for seed in (0, 1)]
    seen: set[int] = set()
    found = ray_jobs(there, workers=2, threads=1, glance=lambda running, _: seen.add(len(running)))
    assert found == dict.fromkeys(there, Outcome(status="finished"))
    assert {2, 0} <= seen, "both ran at a time, and the driver looked again when all was over"
    assert not ray.is_initialized()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert len({process_of(one) for one in there}) == 2
    assert os.getpid() not in {process_of(one) for one in there}
    pool.run_jobs(here, workers=1, threads=1)
    assert [weights(one) for one in there] == [weights(one) for one in here]
    assert weights(there[0]) != weights(there[1])


@pytest.mark.exhaustive
def test_a_killed_worker_takes_nothing_with_it_and_its_run_goes_on_to_the_same_bits(tmp_path: Path, ray_jobs) -> None:
    jobs = [job(tmp_path / "ray", model, 0, 40) for model in ("resnet8", "plain8")]
    killed: list[int] = []

    def kill_one(running, _) -> None:
        if not killed and jobs[0] in running and RunFolder(jobs[0].folder).checkpoint_path.exists():
            killed.append(process_of(jobs[0]))
            os.kill(killed[0], signal.SIGKILL)

    found = ray_jobs(jobs, workers=2, threads=1, glance=kill_one)
    assert killed
    assert found == {
        jobs[0]: Outcome(status="died", text="its process was killed, or its machine is gone (short of memory?)"),
        jobs[1]: Outcome(status="finished"),
    }
    assert ray_jobs(jobs[:1], workers=1, threads=1) == {jobs[0]: Outcome(status="finished")}
    assert [int(step) for step in re.findall(r"from step (\d+)", jobs[0].log.read_text())][1] >= 10
    whole = job(tmp_path / "here", "resnet8", 0, 40)
    pool.run_jobs([whole], workers=1, threads=1)
    assert weights(jobs[0]) == weights(whole)


@pytest.mark.exhaustive
def test_ctrl_c_stops_tasks_behind_a_checkpoint(tmp_path: Path, ray_jobs) -> None:
    jobs = [job(tmp_path / "ray", "resnet8", seed, 400) for seed in (0, 1)]
    pressed, told = [], []

    def press(running, _) -> None:
        if not pressed and RunFolder(jobs[0].folder).checkpoint_path.exists():
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    found = ray_jobs(jobs, workers=1, threads=1, glance=press, stopping=lambda: told.append(True))
    assert found == dict.fromkeys(jobs, Outcome(status="stopped"))
    assert told == [True]
    assert not jobs[1].folder.exists(), "it was not begun"
    stopped_at = re.findall(r"stopped at step (\d+)", jobs[0].log.read_text())
    assert [10 <= int(step) < 400 for step in stopped_at] == [True]
    with pytest.raises(KeyboardInterrupt):  # this process is as it was
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.exhaustive
def test_a_folder_that_is_not_shared_is_said(tmp_path: Path, ray_jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    from skipway.study.jobs import ray_pool

    one = job(tmp_path / "ray", "resnet8", 0, 4)
    monkeypatch.setattr(ray_pool, "_DELAY_SEC", 0.0)
    # What this machine sees of the folder when it lies on the disk of another.
    monkeypatch.setattr(ray_pool.RunFolder, "finished", property(lambda _: False))
    outcome = ray_jobs([one], workers=1, threads=1)[one]
    assert outcome.status == "failed"
    assert re.fullmatch(
        f"{re.escape(str(one.folder))} is not there on this machine, and the run was written on \\S+\n"
        "expected: folders that all machines of the Ray cluster share, at the same path\ntry: another --out",
        outcome.text,
    )
