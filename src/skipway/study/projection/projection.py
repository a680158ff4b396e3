"""What carrying a study out would take: operations, memory, and hours on this machine, by a few steps of each net."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from skipway.errors import SkipwayError
from skipway.report.shown import Shown
from skipway.spec import OptimizerSpec, RecipeSpec, RunSpec
from skipway.study.conduct import is_wanted, row_spec, rows_named
from skipway.study.jobs.machine import worker_devices, workers_and_threads
from skipway.study.jobs.plan import seeds_from
from skipway.study.published import as_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from skipway.data import Dataset
    from skipway.parts import Part
    from skipway.spec import DataSpec
    from skipway.study.budgets import Budget
    from skipway.study.projection.cost import StepCost
    from skipway.study.published import Row, Study
    from skipway.study.records.results import Results

__all__ = ["SCHEMA", "ProjectedRow", "Projection", "project"]

SCHEMA: Final = "skipway.projection/1.0"


@dataclass(frozen=True, kw_only=True)
class ProjectedRow:
    """A row of a study and what it would take.

    Args:
        row: what would be trained.
        spec: of its runs.
        runs: one for each seed that is to be run.
        cost: of one training step.
    """

    row: Row
    spec: RunSpec
    runs: int
    cost: StepCost

    @property
    def run_flops(self) -> int:
        """Training of one run: forward FLOPs of a sample × 3 × batch × steps."""
        return self.cost.training_flops * self.spec.recipe.steps

    @property
    def run_sec(self) -> float:
        """Training of one run alone; tests, checkpoints and inspection not counted."""
        return self.cost.step_sec * self.spec.recipe.steps


@dataclass(frozen=True, kw_only=True, repr=False)
class Projection(Shown):
    """What a study would take on this machine.

    Args:
        study: which.
        budget: of the runs.
        rows: in the order of the table.
        workers: runs at a time.
        threads: of the processor for each run, as they were measured.
        recorded: runs that are on record, and not counted.
    """

    study: Study
    budget: Budget
    rows: tuple[ProjectedRow, ...]
    workers: int
    threads: int
    recorded: int = 0

    @property
    def runs(self) -> int:
        """To be run, of all rows."""
        return sum(row.runs for row in self.rows)

    @property
    def flops(self) -> int:
        """Training of all runs."""
        return sum(row.run_flops * row.runs for row in self.rows)

    @cached_property
    def seconds(self) -> float:
        """All runs, so many at a time, none waiting for another: no shorter than the longest run."""
        work = math.fsum(row.run_sec * row.runs for row in self.rows)
        return max(work / self.workers, max((row.run_sec for row in self.rows if row.runs), default=0.0))

    def to_dict(self) -> dict[str, Any]:
        """The projection as JSON-ready values; `schema` names the version of this layout."""
        from skipway.study.projection.view import projection_dict

        return projection_dict(self)

    def _parts(self) -> tuple[Part, ...]:
        from skipway.study.projection.view import projection_parts

        return projection_parts(self)

    def _report(self) -> tuple[Part, ...]:
        return self._parts()

    def _title(self) -> str:
        return f"skipway study {self.study.id} at budget {self.budget}, projected"


def project(
    study: str | Study,
    budget: Budget,
    *,
    results: Results | None = None,
    root: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    workers: int | None = None,
) -> Projection:
    """Say what a study would take here; each net is built and makes a few steps, nothing is trained or written.

    Nets that differ in nothing that costs are measured once. Data that is not there is replaced by random samples of
    its shape.

    Args:
        study: its id, or a `Study`.
        budget: of the runs.
        results: what is on record: only what is not there is counted; None counts every run.
        root: folder in which the data lies; None for the usual places.
        seeds: runs of each row; by default the budget's.
        only: labels of rows; empty for all.
        workers: runs at a time; by default one for each GPU, or for each core of the processor.

    Raises:
        SkipwayError: an unknown study or row; a net that does not fit its data.
    """
    from skipway.study.projection.cost import step_cost

    found = as_study(study)
    rows = rows_named(found, budget, only)
    numbers = seeds_from(found.seeds(budget) if seeds is None else seeds, 0)
    specs = {row: row_spec(found, row, budget, root=root) for row in rows}
    to_do = {
        row: sum(results is None or is_wanted(found, replace(spec, seed=seed), results) for seed in numbers)
        for row, spec in specs.items()
    }
    missing = sum(to_do.values())
    at_a_time, threads = workers_and_threads(max(missing, 1), found.settings(budget), workers)
    opened, costs = cache(_open), dict[RunSpec, "StepCost"]()
    projected = []
    for row, spec in specs.items():
        same = _what_costs(spec)
        if same not in costs:
            costs[same] = step_cost(same, threads=threads, opened=opened)
        projected.append(ProjectedRow(row=row, spec=spec, runs=to_do[row], cost=costs[same]))
    return Projection(
        study=found, budget=budget, rows=tuple(projected), workers=at_a_time, threads=threads,
        recorded=len(rows) * len(numbers) - missing,
    )  # fmt: skip


def on_gpus(projection: Projection) -> bool:
    """Whether runs are spread over GPUs."""
    return bool(worker_devices(projection.study.settings(projection.budget)))


def _what_costs(spec: RunSpec) -> RunSpec:
    """The spec without what does not change the cost of a step."""
    recipe, plain = spec.recipe, RunSpec(model="")
    return replace(
        spec, seed=0, threads=None, test_every=plain.test_every, log_every=plain.log_every,
        checkpoint_every=plain.checkpoint_every, inspect=plain.inspect,
        recipe=RecipeSpec(
            batch_size=recipe.batch_size, label_smoothing=recipe.label_smoothing,
            optimizer=OptimizerSpec(name=recipe.optimizer.name, momentum=recipe.optimizer.momentum, lr=0.0),
        ),
    )  # fmt: skip


def _open(spec: DataSpec, device: torch.device) -> Dataset:
    """The set, or random samples of its shape."""
    from skipway.data import open_data
    from skipway.study.projection.stand_in import SHAPES, StandIn

    try:
        return open_data(replace(spec, download=False), device=device)
    except SkipwayError:
        if spec.name not in SHAPES:
            raise
        return StandIn(spec, device)
