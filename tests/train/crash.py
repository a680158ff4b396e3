"""Runs in processes of their own, to be killed; a fork server has loaded all that a run needs."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipway.report import files
from skipway.train import checkpoint
from skipway.train.fit import resume, run_spec
from skipway.train.folder import RunFolder
from skipway.train.run import Run
from train.runs import lines, weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skipway.spec import RunSpec

__all__ = ["POINTS", "Death", "carry_on", "finish", "same"]

POINTS = ("before", "half", "written", "renamed")
# Loaded once, ahead of the forks; what is not installed, as this file, cannot be.
_LOADED = [
    "skipway.train.fit",
    "skipway.diagnostics.inspect",
    "skipway.data.sources.digits",
    "sklearn.datasets",
    "torch.distributed.checkpoint.state_dict",
]


@dataclass(frozen=True)
class Death:
    """Where a process kills itself: at a point of writing a file for the k-th time, from 0."""

    file: str
    point: str
    nth: int = 0


def carry_on(spec: RunSpec, path: Path, *, death: Death | None = None, after_sec: float | None = None) -> int | None:
    """Start the run, or go on with it, in a new process, which may be killed; its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    process = context.Process(target=_stretch, args=(spec, path, death))
    process.start()
    process.join(after_sec)
    if process.exitcode is None:
        process.kill()
        process.join()
    code = process.exitcode
    process.close()
    return code


def finish(spec: RunSpec, path: Path) -> Run:
    """Carry on until the run is over."""
    if not RunFolder(path).finished:
        assert carry_on(spec, path) == 0
    return Run(path)


def same(run: Run, other: Run) -> None:
    """Assert that two finished runs are one, and that the first left no half-written file behind."""
    assert run.status == "finished"
    assert lines(run) == lines(other)
    assert weights(run) == weights(other)
    assert run.folder.checkpoint_path.exists()
    assert [p.name for p in run.path.rglob("*.new")] == []


def _stretch(spec: RunSpec, path: Path, death: Death | None) -> None:
    # Of a process group that the process of the tests has.
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    if death is not None:
        _arrange(death)
    if RunFolder(path).spec_path.exists():
        resume(path)
    else:
        run_spec(spec, path)


def _arrange(death: Death) -> None:
    """Let this process kill itself."""
    whole = files.write_atomically
    left = [death.nth]

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
        hit = path.name == death.file and left[0] == 0
        if path.name == death.file:
            left[0] -= 1

        def dying(temporary: Path) -> None:
            if hit and death.point == "before":
                die()
            write(temporary)
            if hit and death.point == "half":
                os.truncate(temporary, temporary.stat().st_size // 2)
                die()
            if hit and death.point == "written":
                die()

        whole(path, dying)
        if hit:
            die()

    for module in (files, checkpoint):
        module.write_atomically = write_atomically  # type: ignore[attr-defined]
