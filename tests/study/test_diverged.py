"""A run that learnt well and then diverged: it counts for nothing, wherever its numbers are read."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import skipway
from skipway.cli.compare_display import CompareDisplay
from skipway.report import to_text
from skipway.study.comparison.comparison import load_comparison
from skipway.study.comparison.runs import runs_parts
from skipway.study.jobs.watch import Watch
from skipway.study.jobs.worker import Job
from skipway.study.outcome import RowRuns
from skipway.study.published import Row
from skipway.study.records.record import Record

sys.path.insert(0, str(Path(__file__).parent))
import fake
import made

if TYPE_CHECKING:
    from skipway.study.comparison.comparison import Comparison
    from skipway.train.run import Run

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, healthy):
        super().__init__()
        self.layer, self.healthy, self.steps = nn.Linear(64, 10), healthy, 0

    def forward(self, x):
        self.steps += self.training
        out = self.layer(x.flatten(1))
        return out * float("nan") if self.steps > 12 and self.training and not self.healthy else out

def breaks():
    return Net(False)

def learns():
    return Net(True)
"""


@pytest.fixture
def found(tmp_path: Path, in_process: list[str]) -> Comparison:
    """A net that is tested after 5 and 10 steps and breaks behind the 12th, against its healthy twin."""
    file = tmp_path / "nets.py"
    file.write_text(NET, encoding="utf-8")
    found = skipway.compare(
        [f"{file}:breaks", f"{file}:learns"], out=tmp_path / "c", seeds=2, steps=20, batch_size=64, test_every=5,
        threads=1, workers=1,
    )  # fmt: skip
    assert len(in_process) == 4
    return load_comparison(found.path)


def test_a_run_that_diverged_has_no_test_error_and_no_loss(
    found: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks, learns = found.models
    run = found.runs[breaks][0]
    # What was tested on the way is kept, and is not what the run ended with.
    assert run.status == "diverged"
    assert run.result["test_error"] < 20
    summary = found.summaries[breaks]
    assert (summary.n, summary.failed, summary.test_error, summary.train_loss) == (2, (0, 1), None, None)
    assert found.effect(learns) is None
    assert found.summaries[learns].test_error is not None
    table = found.table()
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert (cells["test error %"], cells["train loss"], cells["training"]) == ("–", "–", "failed")
    assert _runs_table([run, found.runs[learns][0]])[0][4:6] == ("–", "–")
    _display_says_diverged(found, tmp_path, capsys)


def test_so_do_records_and_rows(found: Comparison) -> None:
    breaks, learns = (
        RowRuns(
            row=Row(label=label, model=model),
            planned=2,
            records={seed: Record.of(run) for seed, run in found.runs[model].items()},
        )
        for label, model in zip(("breaks", "learns"), found.models, strict=True)
    )
    record = breaks.records[0]
    assert record.result["test_error"] is not None
    # From the file too, as it lies in a results folder.
    for one in (record, Record.from_dict(record.to_dict())):
        assert (one.status, one.failed, one.test_error, one.train_loss) == ("diverged", True, None, None)
    assert (breaks.test_error, breaks.train_loss, breaks.errors) == (None, None, {})
    assert breaks.losses == {0: math.inf, 1: math.inf}
    assert breaks.ranked == [math.inf, math.inf]
    outcome = fake.outcome([learns, breaks])
    for of in ("test_error", "train_loss"):
        assert outcome.effect("breaks", "learns", of=of) is None


def _runs_table(runs: list[Run]) -> list[tuple[str, ...]]:
    (table,) = (part for part in runs_parts(runs) if hasattr(part, "rows"))
    assert "diverged" in to_text(runs_parts(runs))
    return list(table.rows)


def _display_says_diverged(found: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = found.runs[found.models[0]]
    jobs = [
        Job(name=f"net seed {seed}", spec=run.spec, folder=run.path, log=tmp_path / "log") for seed, run in runs.items()
    ]
    capsys.readouterr()
    with CompareDisplay() as display:
        # What is over at the first look is not said; so it is first seen on its way.
        display.moved(_waiting(jobs))
        display.moved(Watch(jobs).states([], {}))
    assert capsys.readouterr().out == "net seed 0: diverged\nnet seed 1: diverged\n"


def _waiting(jobs: list[Job]):
    from skipway.study.jobs.listen import RunState

    return [RunState(name=job.name, status="waiting", step=0, steps=20) for job in jobs]


def test_made_by_hand(tmp_path: Path) -> None:
    """The same of folders that older versions wrote."""
    broken = made.result(6.0, 1.0, status="diverged")
    found = made.comparison(tmp_path, {"a": {0: broken, 1: broken}, "b": {0: made.result(5.0, 0.5), 1: None}})
    assert found.summaries["a"].test_error is None
    assert found.effect("b") is None
