"""A study carried out: nothing twice, nothing lost, a record as each run ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from skipway.errors import SkipwayError
from skipway.spec import DataSpec
from skipway.study.conduct import conduct, study_outcome
from skipway.study.jobs import worker
from skipway.study.jobs.worker import Job, Outcome, carry_out
from skipway.study.outcome_tables import go_on, missing_text
from skipway.study.published import Row, Study
from skipway.study.records.results import Results, run_name
from skipway.train.run import load_run

sys.path.insert(0, str(Path(__file__).parent))
import fake
import made

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skipway.study.outcome import StudyOutcome
    from skipway.train.run import Run

ROWS = (Row(label="plain", model="plain8", published=12.0), Row(label="residual", model="resnet8", published=8.0))


class Bench:
    """Stands for the worker processes: writes run folders, or trains in this process.

    Args:
        results: where records should come.
        stop_after: runs, after which somebody asks to stop.
        fail: names of jobs that fail by an error.
        train: whether to train.
    """

    def __init__(
        self, results: Results, *, stop_after: int = 99, fail: Sequence[str] = (), train: bool = False
    ) -> None:
        self.results, self.stop_after, self.fail, self.train = results, stop_after, fail, train
        self.done: list[str] = []
        self.records: list[int] = []

    def __call__(self, jobs: Sequence[Job], *, glance: Any = None, **_: object) -> dict[Job, Outcome]:
        outcomes: dict[Job, Outcome] = {}
        for job in jobs:
            if len(self.done) == self.stop_after:
                break
            self.done.append(job.name)
            outcomes[job] = self._one(job)
            glance([], outcomes)
            self.records.append(len(list(self.results.path.glob("runs/*.json"))))
        return outcomes | {job: Outcome(status="stopped") for job in jobs if job not in outcomes}

    def _one(self, job: Job) -> Outcome:
        if job.name in self.fail:
            return Outcome(status="failed", text="RuntimeError: no room")
        if self.train:
            return carry_out(job)
        made.write_run(job.folder, job.spec, made.result(10.0 + job.spec.seed, 0.5))
        return Outcome(status="finished")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    monkeypatch.setattr("skipway.study.conduct.code_commit", lambda: fake.COMMIT)

    def use(**options: Any) -> Bench:
        made_bench = Bench(Results(tmp_path / "results"), **options)
        monkeypatch.setattr("skipway.study.conduct.launcher_named", lambda _: made_bench)
        return made_bench

    return use


def carried_out(study: Study, bench: Bench, tmp_path: Path, **options: Any) -> StudyOutcome:
    return conduct(study, results=bench.results, out=tmp_path / "runs", **options)


def test_a_record_as_each_run_ends_and_no_run_twice(
    bench: Callable[..., Bench], tmp_path: Path, heard: made.Heard
) -> None:
    first = bench()
    found = carried_out(fake.study(ROWS), first, tmp_path, listener=heard)
    # Seed by seed, so that early results can be compared.
    assert first.done == ["plain8 seed 0", "resnet8 seed 0", "plain8 seed 1", "resnet8 seed 1"]
    assert first.records == [1, 2, 3, 4]
    assert found.complete
    assert found.row("residual").errors == {0: 10.0, 1: 11.0}
    assert found.row("plain").records[0].commit == fake.COMMIT
    assert len(heard.notes) == 1
    assert heard.notes[0].startswith("tablet at budget quick: 4 of 4 runs to do, ")
    assert len(heard.states) == 4
    # The record is enough: the run folders may be gone, or on another machine.
    again = bench()
    assert conduct(fake.study(ROWS), results=again.results, out=tmp_path / "empty").complete
    assert again.done == []
    # A third seed, and another study with a row in common: only what is new.
    more = bench()
    other = fake.study([*ROWS, Row(label="longer", model="resnet14")], id="other")
    assert carried_out(other, more, tmp_path, seeds=3).complete
    assert more.done == ["resnet14 seed 0", "resnet14 seed 1", "plain8 seed 2", "resnet8 seed 2", "resnet14 seed 2"]


def test_an_interrupted_study_goes_on(bench: Callable[..., Bench], tmp_path: Path) -> None:
    first = bench(stop_after=3)
    found = carried_out(fake.study(ROWS), first, tmp_path)
    assert (found.complete, found.interrupted, found.missing, found.troubles) == (False, True, 1, ())
    then = bench()
    found = carried_out(fake.study(ROWS), then, tmp_path)
    assert (found.complete, found.interrupted) == (True, False)
    assert then.done == ["resnet8 seed 1"]


def test_a_run_that_ended_when_nobody_was_there_is_kept(bench: Callable[..., Bench], tmp_path: Path) -> None:
    """The process that keeps records was killed: the run folder is whole, the record is not there."""
    first = bench()
    study = fake.study(ROWS)
    carried_out(study, first, tmp_path)
    (lost,) = (path for path in first.results.path.glob("runs/plain8-seed-1*.json"))
    lost.unlink()
    then = bench()
    assert carried_out(study, then, tmp_path).complete
    assert then.done == []
    assert lost.exists()


def test_some_rows(bench: Callable[..., Bench], tmp_path: Path) -> None:
    first = bench()
    found = carried_out(fake.study(ROWS), first, tmp_path, only=["plain"], workers=1)
    assert first.done == ["plain8 seed 0", "plain8 seed 1"]
    assert [row.row.label for row in found.rows] == ["plain"]


def test_the_data_may_lie_anywhere(
    bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is told where, its record is the one of every other place; digits lie nowhere."""
    monkeypatch.setattr("skipway.study.conduct._check", lambda _: None)  # no such data is here
    clothes = replace(made.SETTINGS, data=DataSpec(name="fashion_mnist"))
    rows = (Row(label="clothes", model="plain8", settings=clothes), ROWS[1])
    first = bench()
    carried_out(fake.study(rows), first, tmp_path, root="/elsewhere", seeds=1)
    runs = {run.spec.model: run for run in map(load_run, (tmp_path / "runs").iterdir())}
    assert {model: run.spec.data.root for model, run in runs.items()} == {"plain8": "/elsewhere", "resnet8": None}
    then = bench()
    assert carried_out(fake.study(rows), then, tmp_path, seeds=1).complete
    assert then.done == []


def test_a_run_that_fails_by_an_error(bench: Callable[..., Bench], tmp_path: Path, heard: made.Heard) -> None:
    first = bench(fail=["plain8 seed 0"])
    found = carried_out(fake.study(ROWS), first, tmp_path, listener=heard)
    assert (found.complete, found.interrupted, found.missing) == (False, False, 1)
    assert found.troubles == ("plain8 seed 0 failed: RuntimeError: no room",)
    assert heard.notes[-1].startswith("plain8 seed 0 failed: RuntimeError: no room\n    its log: ")
    assert bench().done == []


def test_what_is_measured_is_measured_once(bench: Callable[..., Bench], tmp_path: Path) -> None:
    looked: list[int] = []

    def measure(run: Run) -> dict[str, Any]:
        looked.append(run.spec.seed)
        if len(looked) == 2:
            raise SkipwayError("too dark", "light")
        return {"units": run.spec.seed + 1}

    study = fake.study(ROWS[:1], measure=measure)
    found = carried_out(study, bench(), tmp_path)
    # The second measurement failed: its run is on record all the same, and the measurement is made up for.
    assert (found.missing, found.unmeasured, found.complete) == (0, 1, False)
    assert found.troubles == ("plain8 seed 1: not measured: too dark\nexpected: light",)
    then = bench()
    found = carried_out(study, then, tmp_path)
    assert (then.done, looked, found.complete) == ([], [0, 1, 1], True)
    assert found.row("plain").measured == {0: {"units": 1}, 1: {"units": 2}}
    carried_out(study, bench(), tmp_path)
    assert looked == [0, 1, 1]


def test_a_measurement_that_raises_anything_ends_no_run(bench: Callable[..., Bench], tmp_path: Path) -> None:
    """It may be the user's own code; other runs are under way."""

    def measure(run: Run) -> dict[str, Any]:
        return {}[run.spec.seed]

    first = bench()
    found = carried_out(fake.study(ROWS, measure=measure), first, tmp_path)
    assert len(first.done) == 4
    assert (found.missing, found.unmeasured) == (0, 4)
    assert found.troubles[0] == "plain8 seed 0: not measured: KeyError: 0"


def test_the_command_that_goes_on_goes_on_there(bench: Callable[..., Bench], tmp_path: Path) -> None:
    first = bench(stop_after=1)
    found = carried_out(fake.study(ROWS), first, tmp_path, root="/data", workers=2, launcher="ray")
    assert go_on(found) == (
        f"skipway study tablet --budget quick --results {tmp_path / 'results'} --out {tmp_path / 'runs'} --root /data "
        "--workers 2 --launcher ray"
    )
    assert f"To go on: {go_on(found)}" in missing_text(found)
    # What is only read was carried out nowhere.
    assert go_on(study_outcome(fake.study(ROWS), "quick", results=first.results)) == (
        "skipway study tablet --budget quick"
    )


def test_what_is_at_its_default_is_not_typed(
    bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench()
    assert go_on(conduct(fake.study(ROWS))) == "skipway study tablet --budget quick"


def test_rows_of_one_net_by_two_recipes_have_names_of_their_own(bench: Callable[..., Bench], tmp_path: Path) -> None:
    longer = replace(made.SETTINGS, recipe=replace(made.SETTINGS.recipe, steps=30))
    rows = (Row(label="short", model="plain8"), Row(label="long", model="plain8", settings=longer))
    first = bench()
    assert carried_out(fake.study(rows), first, tmp_path, seeds=1).complete
    assert first.done == ["plain8 seed 0, short", "plain8 seed 0, long"]


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, {"only": ["plane"]}, "unknown row of tablet 'plane'\nexpected: did you mean 'plain'?"),
        ({}, {"launcher": "rocket"}, "unknown launcher 'rocket'"),
        ({}, {"seeds": 0}, "seeds=0"),
        ({}, {"workers": 0}, "workers=0"),
        ({"rows": lambda _: (Row(label="a", model="resnet9"),)}, {}, "nothing was started, because of resnet9: "),
        (
            {"settings": lambda _: replace(made.SETTINGS, data=DataSpec(name="cifar10", root="/nowhere"))},
            {},
            "cifar10",
        ),
    ],
)
def test_refused_before_anything_is_started(
    change: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SkipwayError) as caught:
        conduct(
            replace(fake.study(ROWS), **change), results=Results(tmp_path / "results"), out=tmp_path / "runs", **options
        )
    assert said in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_run_is_not_taken(bench: Callable[..., Bench], tmp_path: Path) -> None:
    spec = replace(made.SETTINGS, model="plain8", seed=0)
    made.write_run(tmp_path / "runs" / run_name(spec), replace(spec, seed=5), None)
    with pytest.raises(SkipwayError, match="holds a run of another spec"):
        carried_out(fake.study(ROWS), bench(), tmp_path)


def test_a_real_training_stopped_and_resumed(
    bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped behind its first step, resumed: the loss of four steps at a stretch."""
    settings = replace(
        made.SETTINGS, data=DataSpec(train_size=64, test_size=32), inspect=False,
        recipe=replace(made.SETTINGS.recipe, steps=4, batch_size=16),
    )  # fmt: skip
    study = fake.study(ROWS[:1], settings=lambda _: settings, seeds=lambda _: 1)
    first = bench(train=True)
    undisturbed = conduct(study, results=Results(tmp_path / "other"), out=tmp_path / "other_runs")
    with monkeypatch.context() as patch:
        patch.setattr(worker._Log, "started", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
        stopped = carried_out(study, first, tmp_path)
    assert stopped.interrupted
    (folder,) = (tmp_path / "runs").glob("plain8*")
    assert load_run(folder).status == "stopped"
    resumed = carried_out(study, bench(train=True), tmp_path)
    assert resumed.complete
    assert resumed.row("plain").train_loss == undisturbed.row("plain").train_loss


def test_reading_a_study_loads_no_torch() -> None:
    code = (
        "import sys; from skipway.study.conduct import study_outcome; from skipway.study.published import STUDIES\n"
        "for name in STUDIES: repr(study_outcome(name, 'quick'))\n"
        "print([m for m in ('torch', 'torchvision') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # our own line
    assert done.stdout == "[]\n"
    assert study_outcome(fake.study(ROWS), "quick", results=Results("nowhere")).missing == 4
