"""The folder of what was measured: small files that a repository can hold, one for each run, measurement and claim.

DIR/runs/MODEL-seed-K-DIGEST.json        a run that is over
DIR/measured/STUDY/MODEL-seed-K-DIGEST.json   what a study measured on the net of that run
DIR/claims/BUDGET/CLAIM.json             a verdict
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError
from skipway.report.files import write_json
from skipway.study.records.record import Record, told_apart_by
from skipway.train.folder import read_json, there
from skipway.train.kept import check_environment, check_result
from skipway.train.plan import safe_name

if TYPE_CHECKING:
    from skipway.spec import RunSpec
    from skipway.study.budgets import Budget

__all__ = ["Results", "run_name"]


def run_name(spec: RunSpec) -> str:
    """A name for the folder and the file of a run: the same on every machine, another for every other spec."""
    text = json.dumps(told_apart_by(spec), sort_keys=True)
    return f"{safe_name(spec.model)}-seed-{spec.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Results:
    """Paths and files of what was measured.

    Args:
        path: the folder; need not exist.
    """

    def __init__(self, path: str | Path = "results") -> None:
        self.path = Path(path)

    def record_path(self, spec: RunSpec) -> Path:
        """Where the record of a run lies."""
        return self.path / "runs" / f"{run_name(spec)}.json"

    def read_record(self, spec: RunSpec) -> Record | None:
        """The record of a run; None where it has not been run.

        Raises:
            SkipwayError: the file holds something else.
        """
        path = self.record_path(spec)
        if not there(path):
            return None
        values = read_json(path)
        try:
            record = Record.from_dict(values)
        except SkipwayError as error:
            raise SkipwayError(f"{path}: {error.given}", error.expected, error.hint) from None
        check_result(path, record.result)
        check_environment(path, record.environment)
        if told_apart_by(record.spec) != told_apart_by(spec):
            raise SkipwayError(f"{path} is the record of another run", "the spec that its name stands for")
        return record

    def write_record(self, record: Record) -> None:
        """Write a record, whole or not at all."""
        write_json(self.record_path(record.spec), record.to_dict())

    def measured_path(self, study: str, spec: RunSpec) -> Path:
        """Where what a study measured on a trained net lies."""
        return self.path / "measured" / study / f"{run_name(spec)}.json"

    def read_measured(self, study: str, spec: RunSpec) -> dict[str, Any] | None:
        """What a study measured on a trained net; None where it has not."""
        path = self.measured_path(study, spec)
        return read_json(path) if there(path) else None

    def write_measured(self, study: str, spec: RunSpec, values: dict[str, Any]) -> None:
        """Write what a study measured, whole or not at all."""
        write_json(self.measured_path(study, spec), values)

    def claim_path(self, budget: Budget, claim: str) -> Path:
        """Where a verdict lies."""
        return self.path / "claims" / budget / f"{claim}.json"

    def write_claim(self, budget: Budget, claim: str, values: dict[str, Any]) -> None:
        """Write a verdict, whole or not at all."""
        write_json(self.claim_path(budget, claim), values)
