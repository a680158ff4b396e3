"""A projection as a table and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skipway.parts import Part, Table, Text
from skipway.report.numbers import bytes_text, count_text, counted, duration_text, short
from skipway.study.comparison.view import recipe_line
from skipway.study.projection.projection import SCHEMA, on_gpus

if TYPE_CHECKING:
    from skipway.study.projection.projection import ProjectedRow, Projection

__all__ = ["projection_dict", "projection_parts"]

_FLOPS: Final = (
    "FLOP of training: forward FLOP of a sample, a multiply-add counting 2 as in skipway show, × 3 for forward and "
    "backward × batch × steps."
)
_MEMORY: Final = (
    "Memory: what autograd keeps of a forward pass of the batch (counted on 2 and on 4 samples, a line through both), "
    "weights, gradients and the optimiser's state; the workspace of single operations comes on top."
)
_TIME: Final = (
    "Time: the median of up to three steps of one net alone on this machine, × steps; tests and checkpoints come on "
    "top, and runs at a time share the memory's bandwidth."
)


def projection_parts(projection: Projection) -> tuple[Part, ...]:
    """The parts for a terminal and for a page: the sum, a row for each row of the study, how it was worked out."""
    return (
        Text(text=f"skipway · {_title(projection)}", tone="title"),
        Text(text=_sum(projection)),
        *_tables(projection),
        *(Text(text=line, tone="warning") for line in _warnings(projection)),
        Text(text="\n".join([*_how(projection), _FLOPS, _MEMORY, _TIME]), tone="muted"),
    )


def projection_dict(projection: Projection) -> dict[str, Any]:
    """The projection as JSON-ready values."""
    return {
        "schema": SCHEMA,
        "study": projection.study.id,
        "budget": projection.budget,
        "runs": projection.runs,
        "runs_on_record": projection.recorded,
        "workers": projection.workers,
        "threads": projection.threads,
        "gpus": on_gpus(projection),
        "training_flops": projection.flops,
        "hours": projection.seconds / 3600,
        "rows": [_row_dict(row) for row in projection.rows],
        "notes": [*_warnings(projection), _FLOPS, _MEMORY, _TIME],
    }


def _row_dict(row: ProjectedRow) -> dict[str, Any]:
    cost, recipe = row.cost, row.spec.recipe
    return {
        "label": row.row.label,
        "group": row.row.group,
        "model": row.row.model,
        "data": row.spec.data.name,
        "data_note": cost.data_note,
        "input_shape": list(cost.input_shape),
        "runs": row.runs,
        "steps": recipe.steps,
        "batch_size": recipe.batch_size,
        "parameters": cost.parameters,
        "forward_flops_per_sample": cost.forward_flops,
        "training_flops_per_run": row.run_flops,
        "memory_bytes": cost.memory_bytes,
        "memory_parts_bytes": {
            "activations": cost.activation_bytes, "weights": cost.weight_bytes, "gradients": cost.gradient_bytes,
            "optimizer": cost.optimizer_bytes,
        },
        "step_sec": cost.step_sec,
        "measured_batch_size": cost.measured_batch,
        "scaled": cost.measured_batch != cost.batch_size,
        "hours_per_run": row.run_sec / 3600,
        "hours_of_runs_one_after_the_other": row.run_sec * row.runs / 3600,
        "environment": cost.facts,
    }  # fmt: skip


def _title(projection: Projection) -> str:
    return f"study {projection.study.id} at budget {projection.budget}: what it would take here"


def _sum(projection: Projection) -> str:
    threads = f"with {counted(projection.threads, 'thread')}"
    each = "on a GPU" if on_gpus(projection) else threads
    rows, planned = len(projection.rows), projection.runs + projection.recorded
    known = f", of which {projection.recorded} on record and not counted" if projection.recorded else ""
    return (
        f"{counted(projection.runs, 'run')} ({counted(rows, 'row')} × "
        f"{counted(planned // rows, 'seed')}{known}), {projection.workers} at a time, each {each}: about "
        f"{_hours(projection.seconds)} and {_flops(projection.flops)}FLOP in all. Nothing was trained."
    )


def _tables(projection: Projection) -> list[Table]:
    groups = list(dict.fromkeys(row.row.group for row in projection.rows))
    return [_table([row for row in projection.rows if row.row.group == group], group) for group in groups]


def _table(rows: list[ProjectedRow], group: str) -> Table:
    columns = ("row", "net", "parameters", "FLOP", "memory", "s/step", "timed on", "a run")
    return Table(
        columns=columns,
        rows=tuple(_cells(row) for row in rows),
        numeric=columns[2:],
        title=group or "One run of each row",
    )


def _cells(row: ProjectedRow) -> tuple[str, ...]:
    cost = row.cost
    whole = cost.measured_batch == cost.batch_size
    return (
        row.row.label,
        row.row.model.rpartition(":")[2],
        count_text(cost.parameters),
        _flops(row.run_flops),
        bytes_text(cost.memory_bytes),
        short(cost.step_sec),
        str(cost.batch_size) if whole else f"{cost.measured_batch} of {cost.batch_size}",
        _hours(row.run_sec),
    )


def _warnings(projection: Projection) -> list[str]:
    rows = projection.rows
    found = []
    if scaled := [row for row in rows if row.cost.measured_batch != row.cost.batch_size]:
        which = "Every row was" if len(scaled) == len(rows) else f"{len(scaled)} of {len(rows)} rows were"
        found.append(
            f"{which} timed on fewer samples than a step has (see \"timed on\") and scaled up in proportion: whole "
            "steps would take seconds, or more than half of the free memory. Small batches are slower for "
            "each sample, so that this is rather too long."
        )  # fmt: skip
    notes = dict.fromkeys(row.cost.data_note for row in rows if row.cost.data_note.startswith("random samples of"))
    found += [f"Timed on {note}: reading and augmenting images is not counted." for note in notes]
    return found


def _how(projection: Projection) -> list[str]:
    first = projection.rows[0].cost.facts
    own = dict.fromkeys((recipe_line(row.spec), _shape(row)) for row in projection.rows)
    layout = ", channels-last" if first["channels_last"] else ""
    where = first["processor"] if str(first["device"]).startswith("cpu") else first["device"]
    return [
        *(f"{recipe}, on {shape}" for recipe, shape in own),
        f"hardware: {where}, {first['cores']} cores, {first['precision']}{layout}; torch {first['torch']}",
    ]


def _shape(row: ProjectedRow) -> str:
    return f"{row.spec.data.name} {'×'.join(map(str, row.cost.input_shape))}"


def _flops(value: float) -> str:
    """As a count, with prefixes for what trainings take."""
    for prefix, size in (("Z", 1e21), ("E", 1e18), ("P", 1e15)):
        if value >= size:
            return f"{value / size:.{1 if value >= 9.95 * size else 2}f} {prefix}"
    return count_text(value)


def _hours(seconds: float) -> str:
    return duration_text(seconds) if seconds < 360_000 else f"{seconds / 3600:,.0f} h"
