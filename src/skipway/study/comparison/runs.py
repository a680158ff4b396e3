"""Single runs as a report: what came out, the curves, the signal, how it was done. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skipway.parts import Part, Section, Table, Text
from skipway.report.numbers import count_text
from skipway.study.comparison.view import environment_lines, figures, recipe_line
from skipway.study.summary import as_number, final_error, final_loss, training_failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.train.run import Run

__all__ = ["runs_dict", "runs_parts", "runs_report"]

_SCHEMA: Final = "skipway.runs/1.0"
_NOTE: Final = (
    "Runs of one seed each: a difference may be chance. skipway compare trains several seeds and says what is shown."
)


def runs_parts(runs: Sequence[Run]) -> tuple[Part, ...]:
    """The parts for a terminal: what came out."""
    return (Text(text=f"skipway · {_title(runs)}", tone="title"), *map(_answer, runs), *_table(runs))


def runs_report(runs: Sequence[Run]) -> tuple[Part, ...]:
    """The parts of the report with figures."""
    labels = _labels(runs)
    how = [
        Text(text="\n".join([f"{label}: {run.path}", recipe_line(run.spec), *_environment(run)]), tone="muted")
        for label, run in zip(labels, runs, strict=True)
    ]
    return (
        Text(text=_title(runs), tone="title"),
        Section(title="What came out", parts=(*map(_answer, runs), *_table(runs))),
        *figures({label: [run] for label, run in zip(labels, runs, strict=True)}),
        Section(title="How it was done", parts=tuple(how)),
    )


def runs_dict(runs: Sequence[Run]) -> dict[str, Any]:
    """The runs as JSON-ready values."""
    return {
        "schema": _SCHEMA,
        "runs": [
            {"folder": str(run.path), "status": run.status, "spec": run.spec.to_dict(), "result": run.result}
            for run in runs
        ],
    }


def _title(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs"
    recipe = runs[0].spec.recipe
    return f"{_words(runs[0])}: {recipe.steps} steps of {recipe.batch_size}"


def _words(run: Run) -> str:
    return f"{run.spec.model} on {run.spec.data.name}, seed {run.spec.seed}"


def _labels(runs: Sequence[Run]) -> list[str]:
    """Model and seed, or folders where that does not tell the runs apart."""
    labels = [f"{run.spec.model} seed {run.spec.seed}" for run in runs]
    return labels if len(set(labels)) == len(labels) else [str(run.path) for run in runs]


def _answer(run: Run) -> Text:
    result, status = run.result, run.status
    if not result:
        steps = [line["step"] for line in run.metrics() if "loss" in line]
        return Text(
            text=f"{_words(run)}: not over, at step {steps[-1] if steps else 0} of {run.spec.recipe.steps}. "
            f"To go on: skipway train --resume {run.path}",
            tone="warning",
        )
    if status == "diverged":
        where = f" in {result['where']}" if result["where"] else ""
        return Text(
            text=f"{_words(run)}: diverged, the loss is {result['loss']} at step {result['steps']}; "
            f"{result['what']}{where}.",
            tone="bad",
        )
    text = (
        f"{_words(run)}: test error {result['test_error']:.2f} %, training loss {_number(result['train_loss'], 3)} "
        f"after {result['steps']} steps, {result['seconds']:.0f} s."
    )
    if training_failed(run):
        return Text(text=f"{text} Training failed: the loss stayed at that of guessing.", tone="bad")
    return Text(text=text, tone="good")


def _table(runs: Sequence[Run]) -> tuple[Table, ...]:
    if len(runs) < 2:
        return ()
    columns = ("run", "data", "status", "steps", "test error %", "train loss", "parameters", "seconds")
    rows = tuple(_row(label, run) for label, run in zip(_labels(runs), runs, strict=True))
    return (Table(columns=columns, rows=rows, numeric=columns[3:], title="Runs", note=_NOTE),)


def _row(label: str, run: Run) -> tuple[str, ...]:
    result, spec = run.result, run.spec
    parameters = as_number(result.get("parameters"))
    return (
        label,
        spec.data.name,
        run.status,
        f"{spec.recipe.steps}×{spec.recipe.batch_size}",
        _number(final_error(result) if result else None, 2),
        _number(final_loss(result) if result else None, 3),
        "–" if parameters is None else count_text(parameters),
        _number(result.get("seconds"), 0),
    )


def _number(value: object, digits: int) -> str:
    number = as_number(value)
    return "–" if number is None else f"{number:.{digits}f}"


def _environment(run: Run) -> list[str]:
    return environment_lines(run.environment) if run.folder.environment_path.exists() else []
