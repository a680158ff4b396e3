"""What came out of a study, beside what was published. Reading it needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from skipway.report.shown import Shown
from skipway.study.effects import Effect, Spread, paired_effect, spread
from skipway.study.rank import Ordering, centre, kendall
from skipway.study.summary import error_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skipway.parts import Part
    from skipway.study.budgets import Budget
    from skipway.study.published import Row, Study
    from skipway.study.records.record import Record

__all__ = ["RowRuns", "StudyOutcome"]


@dataclass(frozen=True, kw_only=True)
class RowRuns:
    """A row of a study and its runs.

    Args:
        row: what was to be trained, and what was published.
        planned: runs that the row is to have.
        records: of the runs that are over, by seed.
        measured: what the study measured on the trained nets, by seed.
    """

    row: Row
    planned: int
    records: Mapping[int, Record]
    measured: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def test_error(self) -> Spread | None:
        """In percent, of the seeds by which the row is ranked: those that did not fail, where they are more than half.

        Else of all that have one; the row then ranks as failed.
        """
        left_out = () if math.isinf(centre(self.ranked)) else self.failed
        return spread([error for seed, error in self.errors.items() if seed not in left_out])

    @cached_property
    def train_loss(self) -> Spread | None:
        """Over the seeds that did not diverge, each the mean of its last steps, in nats."""
        return spread([v for r in self.records.values() if (v := r.train_loss) is not None])

    @property
    def errors(self) -> dict[int, float]:
        """Test error by seed, in percent, of the runs that have one."""
        return {seed: v for seed, r in self.records.items() if (v := r.test_error) is not None}

    @property
    def losses(self) -> dict[int, float]:
        """Training loss by seed, in nats; infinite where the run diverged."""
        found = {seed: r.train_loss for seed, r in self.records.items()}
        return {s: math.inf if v is None or not math.isfinite(v) else v for s, v in found.items()}

    @property
    def failed(self) -> tuple[int, ...]:
        """Seeds whose training came to nothing."""
        return tuple(seed for seed, r in self.records.items() if r.failed)

    @property
    def ranked(self) -> list[float]:
        """What the row is ordered by: the test error of each seed, infinite where it failed."""
        return [math.inf if r.failed or r.test_error is None else r.test_error for r in self.records.values()]


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyOutcome(Shown):
    """A study with its runs.

    Args:
        study: what was asked.
        budget: at which it was carried out.
        rows: with their runs, in the order of the table.
        interrupted: whether somebody asked to stop before all was over.
        troubles: what went wrong, a sentence for each run or measurement; empty where nothing did, or where nothing
            was run.
        places: where it was carried out, as options of the command that goes on: names with values; those that are at
            their defaults are left out.
    """

    study: Study
    budget: Budget
    rows: tuple[RowRuns, ...]
    interrupted: bool = False
    troubles: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every run is over, and measured on where the study measures."""
        return not self.missing and not self.unmeasured

    @property
    def runs(self) -> int:
        """Runs that are over."""
        return sum(len(row.records) for row in self.rows)

    @property
    def missing(self) -> int:
        """Runs that are not over."""
        return sum(row.planned for row in self.rows) - self.runs

    @property
    def unmeasured(self) -> int:
        """Runs that are over and that the study has not measured on, though it measures."""
        if self.study.measure is None:
            return 0
        return sum(len(row.records.keys() - row.measured.keys()) for row in self.rows)

    @property
    def seconds(self) -> float:
        """Of training, all runs together."""
        return math.fsum(record.seconds for row in self.rows for record in row.records.values())

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of rows, in order."""
        return tuple(dict.fromkeys(row.row.group for row in self.rows))

    def row(self, label: str, group: str | None = None) -> RowRuns:
        """The row of a label.

        Args:
            label: of the row.
            group: where several groups have that label.

        Raises:
            KeyError: there is no such row.
        """
        for row in self.rows:
            if row.row.label == label and group in (None, row.row.group):
                return row
        raise KeyError(label)

    def effect(self, label: str, reference: str, *, of: str = "test_error", group: str | None = None) -> Effect | None:
        """Difference of a row from another, paired by seed.

        Args:
            label: of the row; below 0 it has less.
            reference: label of the other.
            of: ``"test_error"`` in points, or ``"train_loss"`` in nats.
            group: of both rows, where several groups have these labels.
        """
        one, other = self.row(reference, group), self.row(label, group)
        if of == "train_loss":
            return paired_effect(one.losses, other.losses)
        step = error_step(r.records[seed].environment for r in (one, other) for seed in r.errors)
        return paired_effect(one.errors, other.errors, step=step)

    def ordering(self, group: str | None = None) -> Ordering | None:
        """Kendall's τ-b of the published order and ours.

        Args:
            group: of which rows; None for all.
        """
        rows = [r for r in self.rows if group in (None, r.row.group) and r.row.published is not None]
        places = [math.inf if r.row.published == "fail" else float(r.row.published or 0) for r in rows]
        return kendall(places, [r.ranked for r in rows])

    def to_dict(self) -> dict[str, Any]:
        """The study as JSON-ready values; `schema` names the version of this layout."""
        from skipway.study.outcome_view import outcome_dict

        return outcome_dict(self)

    def _parts(self) -> tuple[Part, ...]:
        from skipway.study.outcome_view import outcome_parts

        return outcome_parts(self)

    def _report(self) -> tuple[Part, ...]:
        from skipway.study.outcome_view import outcome_report

        return outcome_report(self)

    def _title(self) -> str:
        return f"skipway study {self.study.id}"
