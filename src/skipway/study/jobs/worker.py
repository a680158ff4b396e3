"""What happens in a worker process: one run after the other, each with its output in a log file.

Importing this loads no torch: the process is set up before torch looks at its environment.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError
from skipway.report.files import writing
from skipway.train.folder import RunFolder
from skipway.train.listen import Listener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from skipway.spec import RunSpec

__all__ = ["Job", "Outcome", "carry_out", "check_not_importing", "set_up"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: what, where, and where its output goes."""

    name: str
    spec: RunSpec
    folder: Path
    log: Path


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Args:
        status: ``"finished"``, ``"diverged"``, ``"stopped"``, ``"failed"`` (an error was raised) or ``"died"`` (its
            process is gone).
        text: what was said about it; empty where the run folder says everything.
    """

    status: str
    text: str = ""


class _State:
    """Of this process."""

    asked_to_stop = False
    idle = threading.Event()


def check_not_importing() -> None:
    """See that this is not a worker process on its way up, which runs the script that started it once more.

    Raises:
        SkipwayError: the script starts its comparison when it is imported.
    """
    first, main = sys.modules.get("__mp_main__"), sys.modules["__main__"]
    if first is not None and first is not main and multiprocessing.parent_process() is None:
        raise SkipwayError(
            "a worker process imports your script, and the script starts a comparison again",
            "the call behind a guard", 'if __name__ == "__main__": skipway.compare(…)',
        )  # fmt: skip


def set_up(threads: int | None, device: str | None) -> None:
    """Prepare a fresh worker process.

    Args:
        threads: of the processor.
        device: the only CUDA device it sees; None for all.
    """
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    _State.idle.set()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ask_to_stop)
    threading.Thread(target=_outlive_nobody, daemon=True).start()


def _ask_to_stop(_number: int, _frame: FrameType | None) -> None:
    _State.asked_to_stop = True


def _outlive_nobody() -> None:
    """When the parent process is gone: stop behind a checkpoint, then leave."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    _State.idle.wait()
    os._exit(1)


def carry_out(job: Job) -> Outcome:
    """Begin or resume the run of a job; errors become text, with the traceback in the log."""
    if _State.asked_to_stop:
        return Outcome(status="stopped")
    _State.idle.clear()
    try:
        with writing(job.log), _output_in(job.log):
            return _carried_out(job)
    except SkipwayError as error:
        return Outcome(status="failed", text=str(error))
    finally:
        _State.idle.set()


def _carried_out(job: Job) -> Outcome:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {job.name}, process {os.getpid()}", flush=True)  # noqa: T201  # the log
    try:
        from skipway.train.fit import resume, run_spec

        if RunFolder(job.folder).spec_path.exists():
            run = resume(job.folder, listener=_Log())
        else:
            run = run_spec(job.spec, job.folder, listener=_Log())
    except SkipwayError as error:
        traceback.print_exc()
        return Outcome(status="failed", text=str(error))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # the parent is told, the log has the traceback
        traceback.print_exc()
        return Outcome(status="failed", text=f"{type(error).__name__}: {error}")
    return Outcome(status=run.status)


class _Log(Listener):
    """Writes to the log; passes on a wish to stop that came before the training could hear it."""

    def started(self, spec: RunSpec, *, step: int, facts: str) -> None:
        """Say how it is computed."""
        print(f"{spec.model}, seed {spec.seed}, from step {step}: {facts}", flush=True)  # noqa: T201  # the log
        if _State.asked_to_stop:
            os.kill(os.getpid(), signal.SIGTERM)

    def noted(self, text: str) -> None:
        """Say it."""
        print(text, flush=True)  # noqa: T201  # the log

    def ended(self, result: dict[str, Any]) -> None:
        """Say what came out."""
        print(result, flush=True)  # noqa: T201  # the log


@contextmanager
def _output_in(path: Path) -> Iterator[None]:
    """Everything that this process prints goes to the end of a file, also what C++ prints."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    kept = [os.dup(1), os.dup(2)]
    with path.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, handle in zip((1, 2), kept, strict=True):
            os.dup2(handle, number)
            os.close(handle)
