"""Where the runs of a comparison stand, read from their folders."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from skipway.study.jobs.listen import RunState
from skipway.study.summary import final_error, final_loss
from skipway.train.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from skipway.study.jobs.worker import Job, Outcome

__all__ = ["Watch"]

_TAIL_BYTES: Final = 4096


class Watch:
    """Looks at the run folders of some jobs.

    Args:
        jobs: all of the comparison.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._over: dict[Job, RunState] = {}

    def states(self, running: Collection[Job], outcomes: Mapping[Job, Outcome]) -> list[RunState]:
        """Where each job stands."""
        return [self._state(job, running, outcomes) for job in self._jobs]

    def _state(self, job: Job, running: Collection[Job], outcomes: Mapping[Job, Outcome]) -> RunState:
        if job in self._over:
            return self._over[job]
        folder, steps = RunFolder(job.folder), job.spec.recipe.steps
        outcome = outcomes.get(job)
        finished = folder.finished and job not in running
        if finished:
            result = folder.read_result()
            state = RunState(
                name=job.name, status=result["status"], step=steps, steps=steps, loss=final_loss(result),
                test_error=final_error(result),
            )  # fmt: skip
        else:
            status = outcome.status if outcome is not None else "running" if job in running else "waiting"
            line = _last_loss(folder)
            state = RunState(name=job.name, status=status, step=line.get("step", 0), steps=steps, loss=line.get("loss"))
        if outcome is not None or finished:
            self._over[job] = state
        return state


def _last_loss(folder: RunFolder) -> dict[str, Any]:
    """The last whole line of metrics with a training loss; empty if there is none."""
    try:
        with folder.metrics_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    for text in reversed(tail):
        # The first line of the tail may be cut off; it has no beginning then.
        if text.startswith(b"{") and b'"loss"' in text:
            line: dict[str, Any] = json.loads(text)
            return line if isinstance(line["loss"], float) else {}
    return {}
