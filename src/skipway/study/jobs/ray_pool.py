"""Runs on a Ray cluster: each a task in a process of its own, and nothing lost when one of them dies.

The driver and the workers meet in the run folders alone, so those lie where all machines see them at the same path.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ray
import ray.exceptions as lost

from skipway.errors import SkipwayError
from skipway.study.jobs.worker import Job, Outcome, carry_out, set_up
from skipway.train.folder import RunFolder
from skipway.train.stop import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

__all__ = ["run_jobs"]

_GLANCE_SEC: Final = 0.25
# A file system of several machines shows a new file with some delay.
_DELAY_SEC: Final = 5.0
# Nothing of ours goes through Ray's store of objects; this is near the least that it takes.
_STORE_BYTES: Final = 100 * 2**20
_QUIET: Final[dict[str, Any]] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
# Where data is looked for, see `skipway.data`.
_VARIABLES: Final = ("SKIPWAY_DATA", "XDG_CACHE_HOME")
_GONE: Final = (lost.WorkerCrashedError, lost.NodeDiedError, lost.LocalRayletDiedError, lost.OutOfMemoryError)


@dataclass(frozen=True, kw_only=True)
class _Surroundings:
    """What a process started on this machine would inherit; names of data and models may be relative to it."""

    folder: Path = field(default_factory=Path.cwd)
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    variables: dict[str, str] = field(
        default_factory=lambda: {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    )

    def take_on(self) -> None:
        """Make them those of this process."""
        os.chdir(self.folder)
        sys.path += [entry for entry in self.path if entry not in sys.path]
        os.environ.update(self.variables)


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int,
    threads: int | None = None,
    devices: Sequence[str] = (),
    glance: Callable[[Collection[Job], dict[Job, Outcome]], None] | None = None,
    stopping: Callable[[], None] | None = None,
) -> dict[Job, Outcome]:
    """As `skipway.study.jobs.pool.run_jobs`, on the workers of a Ray cluster.

    The cluster is that of ``RAY_ADDRESS``, or the one running on this machine, or one started here for these jobs.

    Args:
        jobs: in the order in which they begin.
        workers: tasks at a time.
        threads: processors that each task takes; 1 where nobody says.
        devices: as many as there are, each task takes one GPU, whichever Ray gives it; none for processors.
        glance: is called several times a second with the jobs that were handed to Ray and the outcomes so far.
        stopping: is called once when somebody asks to stop.

    Raises:
        SkipwayError: there is no cluster at the address that was given.
    """
    outcomes: dict[Job, Outcome] = {}
    waiting = deque(jobs)
    busy: dict[Any, Job] = {}
    asked = False
    if not jobs:
        return outcomes
    here, at_a_time = _Surroundings(), min(workers, len(jobs))
    with _cluster(cpus=at_a_time * (threads or 1), gpus=len(devices)), stop_on_signals() as stop:
        # A task that was killed is not begun again unasked, and a process serves one task.
        task: Any = ray.remote(
            num_cpus=threads or 1, num_gpus=1 if devices else 0, max_retries=0, max_calls=1
        )(_carry_out_there)  # fmt: skip
        try:
            while busy or (waiting and not stop()):
                while waiting and len(busy) < at_a_time and not stop():
                    job = waiting.popleft()
                    job.log.parent.mkdir(parents=True, exist_ok=True)
                    busy[task.remote(job, here, threads)] = job
                if stop() and not asked:
                    asked = True
                    if stopping is not None:
                        stopping()
                    # Where the task runs this is a SIGINT, as Python sees it; where it waits it is never begun.
                    for reference in busy:
                        ray.cancel(reference)
                done = ray.wait(list(busy), timeout=_GLANCE_SEC)[0] if busy else []
                for reference in done:
                    job = busy.pop(reference)
                    outcomes[job] = _outcome(reference, job)
                if glance is not None:
                    glance(busy.values(), outcomes)
        finally:
            for reference in busy:
                ray.cancel(reference, force=True)
    return outcomes | {job: Outcome(status="stopped") for job in waiting}


@contextmanager
def _cluster(*, cpus: int, gpus: int) -> Iterator[None]:
    """Connected to a cluster; one that was started here is ended.

    Raises:
        SkipwayError: there is none at the address that was given.
    """
    if ray.is_initialized():
        yield
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray's own report over the network
    # Ray catches it, and does not put back what it found.
    before = signal.getsignal(signal.SIGTERM)
    try:
        _connect(cpus, gpus)
        yield
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _connect(cpus: int, gpus: int) -> None:
    try:
        try:
            ray.init(num_cpus=cpus, num_gpus=gpus, object_store_memory=_STORE_BYTES, **_QUIET)
        except ValueError:  # there is a cluster, whose size is not for us to say
            ray.init(**_QUIET)
    except (ConnectionError, ValueError) as error:
        address = os.environ.get("RAY_ADDRESS")
        raise SkipwayError(
            f"no Ray cluster at {address or 'the address that `ray start` left behind'}: {error}",
            "a cluster that runs; without one, Ray is started on this machine",
            "unset RAY_ADDRESS" if address else "ray stop",
        ) from error


def _carry_out_there(job: Job, surroundings: _Surroundings, threads: int | None) -> tuple[Outcome, str]:
    """In the process of a Ray worker: the outcome, and the name of the machine."""
    machine = platform.node()
    set_up(threads, None)
    for folder in (surroundings.folder, job.log.parent):
        if not folder.is_dir():
            return Outcome(status="failed", text=_not_shared(folder, machine)), machine
    surroundings.take_on()
    return carry_out(job), machine


def _outcome(reference: Any, job: Job) -> Outcome:
    try:
        answer: tuple[Outcome, str] = ray.get(reference)
    except lost.TaskCancelledError:
        return Outcome(status="stopped")
    except _GONE as error:
        short = isinstance(error, lost.OutOfMemoryError)
        return Outcome(
            status="died",
            text="Ray ended its process: the machine was short of memory" if short
            else "its process was killed, or its machine is gone (short of memory?)",
        )  # fmt: skip
    except lost.RayError as error:
        return Outcome(status="failed", text=f"Ray could not carry it out: {str(error).strip().splitlines()[-1]}")
    outcome, machine = answer
    if outcome.status in ("finished", "diverged") and not _seen_here(job):
        return Outcome(status="failed", text=_not_shared(job.folder, "this machine", written=machine))
    return outcome


def _seen_here(job: Job) -> bool:
    """Whether the run that is over lies in its folder, also from where this process stands."""
    last = time.monotonic() + _DELAY_SEC
    while not RunFolder(job.folder).finished:
        if time.monotonic() > last:
            return False
        time.sleep(_GLANCE_SEC)
    return True


def _not_shared(folder: Path, machine: str, *, written: str = "") -> str:
    where = f", and the run was written on {written}" if written else ""
    return str(
        SkipwayError(
            f"{folder} is not there on {machine}{where}",
            "folders that all machines of the Ray cluster share, at the same path", "another --out",
        )
    )  # fmt: skip
