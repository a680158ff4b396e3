"""One tiny comparison for all tests that only look, and runs carried out in this process where no other is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

import skipway
from skipway.study.jobs.worker import carry_out

sys.path.insert(0, str(Path(__file__).parent))
import made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from skipway.study.jobs.worker import Job, Outcome


@pytest.fixture(scope="session", autouse=True)
def _one_core() -> Iterator[None]:
    """Tests run beside others: with a thread for each core, speeds would be measured waiting for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skipway.study.jobs.speed.cores", lambda: 1)
        yield


@pytest.fixture
def heard() -> made.Heard:
    return made.Heard()


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison that two worker processes made; look at it only.

    It takes most of the time of these tests, so that the processes that run the tests share one.
    """
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if parallel else base) / "compared" / "comparison"
    with FileLock(out.parent.with_suffix(".lock")):
        if not (out / "report.html").exists():
            skipway.compare(["plain8", "resnet8"], out=out, seeds=2, workers=2, **made.TINY)
    return out


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs are carried out here, one after the other; the names of those that were."""
    done: list[str] = []

    def run_jobs(jobs: Sequence[Job], **_: object) -> dict[Job, Outcome]:
        done.extend(job.name for job in jobs)
        return {job: carry_out(job) for job in jobs}

    monkeypatch.setattr("skipway.study.jobs.pool.run_jobs", run_jobs)
    return done


@pytest.fixture
def in_process_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, runs are carried out in this process."""

    def run_jobs(jobs: Sequence[Job], **_: object) -> dict[Job, Outcome]:
        return {job: carry_out(job) for job in jobs}

    return lambda: monkeypatch.setattr("skipway.study.jobs.pool.run_jobs", run_jobs)
