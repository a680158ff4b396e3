"""What a person sees of one training: a bar with time left, losses, and the result in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from skipway.cli.lasting_console import LastingConsole
from skipway.cli.progress_display import ProgressDisplay
from skipway.report.numbers import count_text
from skipway.train.listen import Listener

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.progress import TaskID

    from skipway.spec import RunSpec

__all__ = ["TrainingDisplay"]


class TrainingDisplay(ProgressDisplay, Listener):
    """Shows a training on the terminal; where there is none, a line now and then.

    Args:
        folder: of the run.
        console: where; by default standard output.
    """

    def __init__(self, folder: Path, console: Console | None = None) -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"),
            TextColumn("loss {task.fields[loss]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=console or LastingConsole(highlight=False, soft_wrap=True),
        )  # fmt: skip
        self._folder = folder
        self._task: TaskID | None = None
        self._steps = 0
        self._shown = 0

    def started(self, spec: RunSpec, *, step: int, facts: str) -> None:
        """Say what begins and how it is computed."""
        recipe, self._steps = spec.recipe, spec.recipe.steps
        self._say(
            f"{spec.model} on {spec.data.name} · recipe {recipe.name}, {recipe.steps} steps of {recipe.batch_size}, "
            f"seed {spec.seed}" + (f" · goes on from step {step}" if step else "")
        )
        self._say(facts)
        self._task = self._progress.add_task(spec.model, total=recipe.steps, completed=step, loss="–")

    def measured(self, line: dict[str, Any]) -> None:
        """Move the bar."""
        if "loss" in line and self._task is not None:
            self._progress.update(self._task, completed=line["step"], loss=f"{line['loss']:.3f}")
        tenth = line["step"] * 10 // self._steps
        if not self._console.is_terminal and "loss" in line and tenth > self._shown:
            self._shown = tenth
            self._say(f"step {line['step']}/{self._steps}  loss {line['loss']:.3f}  {line['seconds']:.0f} s")
        if "test_error" in line and line["step"] < self._steps:
            self._say(f"step {line['step']}  test error {line['test_error']:.2f} %")

    def ended(self, result: dict[str, Any]) -> None:
        """Say what came out and where it lies."""
        self._progress.stop()
        speed = f"{count_text(round(result['samples_per_sec']))} samples/s" if result["samples_per_sec"] else ""
        if result["status"] == "diverged":
            where = f" in {result['where']}" if result["where"] else ""
            self._say(f"diverged: the loss is {result['loss']} at step {result['steps']}; {result['what']}{where}")
            kept = result["checkpoint_step"]
            self._say(f"the checkpoint of step {kept} is kept" if kept else "it came before the first checkpoint")
        else:
            self._say(
                f"test error {result['test_error']:.2f} % · training loss {result['train_loss']:.3f} · "
                f"{result['seconds']:.0f} s, {speed}"
            )
        self._say(f"run: {self._folder}")
