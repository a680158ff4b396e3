"""A process of several is killed, falls silent or fails: the others say so and end, and the run goes on from there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from skipway.spec import DataSpec
from skipway.train.fit import resume
from skipway.train.folder import RunFolder
from skipway.train.run import Run
from train.runs import ADAMW, lines, open_once, tiny
from train.test_ranks import HERE, alone, losses

SPEC = tiny(
    "gpt_nano", data=DataSpec(name="reverse", test_size=101), recipe=ADAMW, batch_size=12, steps=10, accelerator="cpu",
    checkpoint_every=2, strategy="ddp",
)  # fmt: skip
# From the last checkpoint to the end of all processes; on an idle machine it is about 2 s.
TOLD_SEC = 30
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


def start(folder: Path, *jobs: dict[str, Any], launcher: str, ranks: int) -> subprocess.Popen[str]:
    """Carry out jobs on several ranks, launched by the first of them (``"own"``) or by ``"torchrun"``."""
    file = folder / "jobs.json"
    own = launcher == "own"
    given = [{**job, "spec": replace(job["spec"], devices=ranks if own else 1).to_dict()} for job in jobs]
    file.write_text(json.dumps(given))
    before = [] if own else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, *before, str(HERE / "ranks.py"), str(folder), str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """What all ranks printed, when all of them are gone; nobody is left behind."""
    said, _ = process.communicate(timeout=300)
    return said


def left(folder: Path) -> list[str]:
    """Processes that still work for a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, state = (path / "cmdline").read_text(), (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # gone meanwhile
            continue
        if str(folder) in command and state != "Z":
            found.append(command)
    return found


def lost(folder: Path, launcher: str, ranks: int, strike: dict[str, Any], **job: Any) -> tuple[str, float]:
    """Strike a rank in its eighth step; what was said, and seconds from the last checkpoint to the end of all."""
    spec = job.pop("spec", SPEC)
    process = start(
        folder, {"name": "run", "spec": spec, "strike": {"at": 7, **strike}, **job}, launcher=launcher, ranks=ranks
    )
    said = ended(process)
    state = folder / "run" / "checkpoint" / "state.safetensors"
    seconds = time.time() - state.stat().st_mtime
    assert process.returncode != 0, said
    assert left(folder) == []
    return said, seconds


def told(said: str, what: str, folder: Path, ranks: int) -> int:
    """How many ranks said it: which process went, and where the checkpoint is."""
    state = re.escape(str(folder / "run" / "checkpoint" / "state.safetensors"))
    return len(re.findall(rf"{what}; this ends the run on all {ranks} processes; the last checkpoint is {state}", said))


def test_a_killed_process_is_told_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    said, seconds = lost(tmp_path, "own", 2, {"rank": 1, "signal": signal.SIGKILL})
    assert told(said, r"process 1 of 2 \(pid \d+ on \S+\) is gone: killed, or its machine lost", tmp_path, 2) == 1
    assert "Traceback" not in said
    assert seconds < TOLD_SEC
    run = resume(tmp_path / "run", devices=1, data=open_once(SPEC.data))
    torch.testing.assert_close(losses(run), losses(alone(SPEC, tmp_path)), rtol=0, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("launcher", "ranks", "rank", "strategy"),
    [
        ("own", 2, 0, "fsdp2"), ("own", 3, 1, "fsdp2"), ("own", 3, 0, "ddp"),
        ("torchrun", 2, 1, "fsdp2"), ("torchrun", 2, 0, "ddp"), ("torchrun", 3, 2, "ddp"),
    ],
)  # fmt: skip
def test_killed(launcher: str, ranks: int, rank: int, strategy: str, tmp_path: Path) -> None:
    """Resumed on as many processes, it is the undisturbed run.

    To the bit, unless DDP adds three numbers: it orders its gradients anew behind the first step of each stretch.
    """
    spec = replace(SPEC, strategy=strategy)
    said, seconds = lost(tmp_path, launcher, ranks, {"rank": rank, "signal": signal.SIGKILL}, spec=spec)
    print(f"{launcher} {ranks} {rank} {strategy}: {seconds:.1f} s")
    gone = rf"process {rank} of {ranks} \(pid \d+ on \S+\) is gone: killed, or its machine lost"
    assert told(said, gone, tmp_path, ranks) == ranks - 1
    assert seconds < TOLD_SEC
    again = start(
        tmp_path, {"name": "run", "spec": spec, "resume": True}, {"name": "undisturbed", "spec": spec},
        launcher=launcher, ranks=ranks,
    )  # fmt: skip
    said = ended(again)
    assert again.returncode == 0, said
    run, undisturbed = Run(tmp_path / "run"), Run(tmp_path / "undisturbed")
    torch.testing.assert_close(losses(run), losses(undisturbed), rtol=0, atol=1e-5)
    if strategy == "fsdp2" or ranks == 2:
        assert lines(run) == lines(undisturbed)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("launcher", "ranks", "rank"), [("own", 2, 1), ("own", 3, 0), ("torchrun", 2, 1)])
def test_stopped_but_alive(launcher: str, ranks: int, rank: int, tmp_path: Path) -> None:
    """torchrun waits half a minute for its silent process before it kills it."""
    strike = {"rank": rank, "signal": signal.SIGSTOP}
    said, seconds = lost(tmp_path, launcher, ranks, strike, silent_beats=5)
    print(f"{launcher} {ranks} {rank}: {seconds:.1f} s")
    assert (
        told(said, rf"process {rank} of {ranks} \(pid \d+ on \S+\) gave no sign of life for 5 s", tmp_path, ranks) > 0
    )
    assert seconds < TOLD_SEC + 40
    assert Run(tmp_path / "run").status == "stopped"


@pytest.mark.exhaustive
def test_a_full_disk_on_one_process(tmp_path: Path) -> None:
    """Its shard cannot be written; the checkpoint before stays, on all of them."""
    spec = replace(SPEC, strategy="fsdp2")
    said, _ = lost(tmp_path, "torchrun", 2, {"rank": 1, "file_size": 10_000}, spec=spec)
    shard = re.escape(str(tmp_path / "run" / "checkpoint" / "step-8-rank-1-of-2.safetensors"))
    assert re.search(rf"REFUSED run: cannot write {shard}: no space left\n", said)
    failed = rf"process 1 of 2 \(pid \d+ on \S+\) failed: cannot write {shard}: no space left"
    assert told(said, failed, tmp_path, 2) == 1
    run = resume(tmp_path / "run", data=open_once(spec.data))
    torch.testing.assert_close(losses(run), losses(alone(spec, tmp_path)), rtol=0, atol=1e-5)


@pytest.mark.exhaustive
def test_killed_before_the_others_have_joined(tmp_path: Path) -> None:
    process = start(tmp_path, {"name": "run", "spec": SPEC}, launcher="own", ranks=2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    ends = time.monotonic() + 120
    while not children.read_text():
        assert time.monotonic() < ends
        time.sleep(0.01)
    process.kill()
    ended(process)
    while left(tmp_path):
        assert time.monotonic() < ends
        time.sleep(0.1)


@pytest.mark.exhaustive
def test_the_command_line_says_how_to_go_on(tmp_path: Path) -> None:
    options = ["--data", "reverse", "--steps", "2000", "--batch", "16", "--accelerator", "cpu", "--no-inspect"]
    process = subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, "-m", "skipway", "train", "gpt_nano", *options, "--devices", "2", "--strategy", "ddp",
         "--checkpoint-every", "2", "--out", "run"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    ends = time.monotonic() + 200
    while not RunFolder(tmp_path / "run").checkpoint_path.exists():
        assert time.monotonic() < ends
        time.sleep(0.1)
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    os.kill(child, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert re.fullmatch(
        rf"error: process 1 of 2 \(pid {child} on \S+\) is gone: killed, or its machine lost; this ends the run on all "
        r"2 processes; the last checkpoint is run/checkpoint/state\.safetensors\n"
        r"expected: every process alive until the end\ntry: skipway train --resume run\n",
        said,
    )
