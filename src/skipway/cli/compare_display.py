"""What a person sees of a comparison: one bar for all with the time left, a line for each run that is under way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from skipway.cli.lasting_console import LastingConsole
from skipway.cli.progress_display import ProgressDisplay
from skipway.study.jobs.listen import StudyListener

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import TaskID

    from skipway.study.jobs.listen import RunState

__all__ = ["CompareDisplay"]

_EVERY_SEC: Final = 15.0
_OVER: Final = ("finished", "diverged", "stopped", "failed", "died")


class CompareDisplay(ProgressDisplay, StudyListener):
    """Shows a comparison, or one study after the other; where there is no terminal, a line now and then.

    Args:
        stderr: whether it is shown there, since standard output is for something else.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(),
            TextColumn("{task.fields[loss]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=LastingConsole(highlight=False, soft_wrap=True, stderr=stderr), speed_sec=120,
        )  # fmt: skip
        self._all: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: set[str] = set()
        self._spoke = self._began = time.monotonic()
        self.states: Sequence[RunState] = ()

    def moved(self, states: Sequence[RunState]) -> None:
        """Move the bars, and say which runs are over."""
        if self._all is None or self._others(states):
            self._clear()
            # What was done before is not said again, and is no measure of the speed.
            self._said.update(s.name for s in states if s.status in _OVER)
            self._all = self._progress.add_task("all runs", total=sum(s.steps for s in states), loss="")
        self.states = states
        self._progress.update(self._all, completed=sum(s.step for s in states))
        for state in states:
            self._show(state)
        if not self._console.is_terminal and time.monotonic() - self._spoke > _EVERY_SEC:
            self._say(self._line(states))

    def _others(self, states: Sequence[RunState]) -> bool:
        """Whether these are other runs than before: of the next study, maybe with the same names."""
        if [s.name for s in states] != [s.name for s in self.states]:
            return True
        return all(s.status in _OVER for s in self.states) and any(s.status not in _OVER for s in states)

    def _clear(self) -> None:
        """Forget the runs that were shown before."""
        for task in (*self._tasks.values(), *([] if self._all is None else [self._all])):
            if task in self._progress.task_ids:
                self._progress.remove_task(task)
        self._tasks, self._said = {}, set()

    def stopping(self) -> None:
        """Say what Ctrl-C does."""
        self._say("stopping behind a checkpoint; Ctrl-C again ends at once")

    def measuring(self, model: str) -> None:
        """Say what takes a moment."""
        if self._all is not None:
            self._progress.update(self._all, description=f"speed of {model}")

    def _show(self, state: RunState) -> None:
        loss = "" if state.loss is None else f"loss {state.loss:.3f}"
        task = self._tasks.get(state.name)
        if state.status == "running":
            if task is None:
                task = self._tasks[state.name] = self._progress.add_task(state.name, total=state.steps, loss=loss)
            self._progress.update(task, completed=state.step, loss=loss)
        elif state.status in _OVER and state.name not in self._said:
            self._said.add(state.name)
            if task is not None:
                self._progress.remove_task(task)
            if state.test_error is not None and state.loss is not None:
                self._say(f"{state.name}: test error {state.test_error:.2f} %, training loss {state.loss:.3f}")
            else:
                self._say(f"{state.name}: {state.status}")

    def _line(self, states: Sequence[RunState]) -> str:
        done, total = sum(s.step for s in states), sum(s.steps for s in states)
        over = sum(s.status in _OVER for s in states)
        running = ", ".join(f"{s.name} at {s.step}" for s in states if s.status == "running")
        passed = time.monotonic() - self._began
        return f"{passed:.0f} s: {100 * done // total} % of all steps, {over} of {len(states)} runs over; {running}"

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        super()._say(text)
