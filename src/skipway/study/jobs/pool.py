"""Runs in parallel: one process for each slot, from the standard library, and nothing lost when one of them dies.

A pool of several processes breaks as a whole when one is killed; so each slot is a pool of one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from skipway.study.jobs.worker import Job, Outcome, carry_out, set_up
from skipway.train.stop import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from concurrent.futures import Future

__all__ = ["run_jobs"]

_GLANCE_SEC: Final = 0.25


class _Slot:
    """A worker process that carries out one job after the other."""

    def __init__(self, threads: int | None, device: str | None) -> None:
        self._given = (threads, device)
        self._start()

    def _start(self) -> None:
        self._told = False
        self._executor = ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=set_up, initargs=self._given
        )
        self._pid = self._executor.submit(os.getpid)

    def submit(self, job: Job) -> Future[Outcome]:
        """Begin a job, in a new process if the last one is gone."""
        try:
            return self._executor.submit(carry_out, job)
        except BrokenProcessPool:
            self._executor.shutdown(wait=False)
            self._start()
            return self._executor.submit(carry_out, job)

    def stop(self) -> None:
        """Ask the process once to stop behind a checkpoint, as soon as it can hear."""
        if not self._told:
            self._told = self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> bool:
        if not self._pid.done() or self._pid.exception() is not None:
            return False
        with suppress(ProcessLookupError):
            os.kill(self._pid.result(), number)
        return True

    def close(self) -> None:
        """Let the process end."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int,
    threads: int | None = None,
    devices: Sequence[str] = (),
    glance: Callable[[Collection[Job], dict[Job, Outcome]], None] | None = None,
    stopping: Callable[[], None] | None = None,
) -> dict[Job, Outcome]:
    """Carry out jobs, `workers` at a time.

    Ctrl-C stops all of them behind a checkpoint; a second one ends them at once.

    Args:
        jobs: in the order in which they begin.
        workers: processes.
        threads: of the processor, for each process.
        devices: CUDA devices, one for each process; none for processors.
        glance: is called several times a second with the jobs that run and the outcomes so far.
        stopping: is called once when somebody asks to stop.

    Returns:
        The outcome of each job; jobs that were not begun are ``"stopped"``.
    """
    outcomes: dict[Job, Outcome] = {}
    waiting = deque(jobs)
    busy: dict[Future[Outcome], tuple[_Slot, Job]] = {}
    slots: list[_Slot] = []
    over = False
    with stop_on_signals() as stop:
        try:
            slots += [_Slot(threads, devices[k] if devices else None) for k in range(min(workers, len(jobs)))]
            idle = list(slots)
            while busy or (waiting and not stop()):
                while waiting and idle and not stop():
                    slot, job = idle.pop(0), waiting.popleft()
                    busy[slot.submit(job)] = slot, job
                if stop():
                    if stopping is not None:
                        stopping()
                        stopping = None
                    for slot, _ in busy.values():
                        slot.stop()
                done, _ = wait(busy, timeout=_GLANCE_SEC, return_when=FIRST_COMPLETED)
                for future in done:
                    slot, job = busy.pop(future)
                    outcomes[job] = _outcome(future, stopping=stop())
                    idle.append(slot)
                if glance is not None:
                    glance([job for _, job in busy.values()], outcomes)
            over = True
        finally:
            for slot in slots:
                if not over:
                    slot.kill()
                slot.close()
    return outcomes | {job: Outcome(status="stopped") for job in waiting}


def _outcome(future: Future[Outcome], *, stopping: bool) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        if stopping:  # a signal came before the process could hear it
            return Outcome(status="stopped")
        return Outcome(status="died", text="its process was killed (short of memory?)")
