"""Carry a study out: every run that is not on record yet, a record as each ends, then what is measured on the nets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skipway.errors import SkipwayError, UnknownNameError
from skipway.study.jobs.launch import launcher_named
from skipway.study.jobs.listen import StudyListener
from skipway.study.jobs.machine import worker_devices, workers_and_threads
from skipway.study.jobs.plan import seeds_from
from skipway.study.jobs.watch import Watch
from skipway.study.jobs.worker import Job, Outcome, check_not_importing
from skipway.study.outcome import RowRuns, StudyOutcome
from skipway.study.published import as_study
from skipway.study.records.provenance import code_commit
from skipway.study.records.record import Record, told_apart_by
from skipway.study.records.results import Results, run_name
from skipway.train.folder import RunFolder, there
from skipway.train.run import load_run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from skipway.spec import RunSpec
    from skipway.study.budgets import Budget
    from skipway.study.published import Row, Study
    from skipway.train.run import Run

__all__ = ["conduct", "is_wanted", "row_spec", "rows_named", "study_outcome"]

_RESULTS: Final = Path("results")
_OUT: Final = Path("runs/studies")

# Sets whose files are the same wherever they lie. Others take no folder, or are another set in another one (text).
_LIES_SOMEWHERE: Final = ("cifar10", "cifar100", "fashion_mnist", "imagenet")


def conduct(  # noqa: PLR0913  # keywords of one call, all optional
    study: str | Study,
    budget: Budget = "quick",
    *,
    results: Results | None = None,
    out: str | Path = _OUT,
    root: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    workers: int | None = None,
    launcher: str = "local",
    listener: StudyListener | None = None,
) -> StudyOutcome:
    """Train what a study needs, and say what came out beside what was published.

    A run that is on record is not repeated, one that was stopped goes on; runs of one spec serve all studies.

    Args:
        study: its id, or a `Study`.
        budget: ``"quick"``, ``"standard"`` or ``"paper"``.
        results: where records are kept; by default in ``results``.
        out: folder of the run folders.
        root: folder in which the data lies, if it lies anywhere; None for the usual places.
        seeds: runs of each row; by default the budget's.
        only: labels of the rows to run; empty for all.
        workers: runs at a time; by default one for each GPU, or for each core of the processor.
        launcher: ``"local"`` or ``"ray"``.
        listener: is told how it goes on.

    Raises:
        SkipwayError: an unknown study, row or launcher, or data that is not there, before anything is started.
    """
    check_not_importing()
    found = as_study(study)
    results, listener = results or Results(), listener or StudyListener()
    run_jobs = launcher_named(launcher)
    keeper = _Keeper(found, results, listener, commit=code_commit())
    specs = _specs(found, budget, root=root, seeds=seeds, only=only)
    flat = [spec for k in range(max(map(len, specs.values()))) for row in specs.values() for spec in row[k : k + 1]]
    missing = list({run_name(spec): spec for spec in flat if is_wanted(found, spec, results)}.values())
    jobs: list[Job] = []
    if missing:
        _, threads = workers_and_threads(len(missing), found.settings(budget), workers)
        jobs = _jobs(missing, specs, Path(out), threads)
        for job in jobs:  # one that ended when nobody was there to keep it
            keeper.keep(job)
        jobs = [job for job in jobs if not RunFolder(job.folder).finished]
    outcomes: dict[Job, Outcome] = {}
    if jobs:
        _check(jobs)
        at_a_time, _ = workers_and_threads(len(jobs), found.settings(budget), workers)
        listener.noted(
            f"{found.id} at budget {budget}: {len(jobs)} of {len(flat)} runs to do, {at_a_time} at a time, "
            f"each recorded in {results.path} as it ends"
        )
        watch = Watch(jobs)

        def glance(running: Collection[Job], outcomes: Mapping[Job, Outcome]) -> None:
            for job in outcomes:
                keeper.keep(job)
            listener.moved(watch.states(running, outcomes))

        outcomes = run_jobs(
            jobs, workers=at_a_time, threads=threads, devices=worker_devices(found.settings(budget)), glance=glance,
            stopping=listener.stopping,
        )  # fmt: skip
        keeper.close(outcomes)
    return replace(
        study_outcome(found, budget, results=results, seeds=seeds, only=only),
        places=_places(results.path, Path(out), root, workers, launcher),
        interrupted=any(outcome.status == "stopped" for outcome in outcomes.values()),
        troubles=tuple(keeper.troubles),
    )


def _places(results: Path, out: Path, root: str | None, workers: int | None, launcher: str) -> dict[str, str]:
    """What `skipway study` has to be told to go on in the same places: options that are not at their defaults."""
    given = {
        "results": None if results == _RESULTS else results,
        "out": None if out == _OUT else out,
        "root": root,
        "workers": workers,
        "launcher": None if launcher == "local" else launcher,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


class _Keeper:
    """Writes the records of runs that are over, once each, and what the study measures on their nets.

    Args:
        study: whose runs.
        results: where.
        listener: is told what goes wrong.
        commit: of the code.
    """

    def __init__(self, study: Study, results: Results, listener: StudyListener, *, commit: str) -> None:
        self._study, self._results, self._listener, self._commit = study, results, listener, commit
        self._kept: set[Job] = set()
        self.troubles: list[str] = []

    def keep(self, job: Job) -> None:
        """Keep a run, if it is over and was not kept before."""
        if job in self._kept or not RunFolder(job.folder).finished:
            return
        self._kept.add(job)
        run = load_run(job.folder)
        if self._results.read_record(run.spec) is None:
            self._results.write_record(Record.of(run, commit=self._commit))
        if self._study.measure is not None and self._results.read_measured(self._study.id, run.spec) is None:
            self._measure(job, run, self._study.measure)

    def close(self, outcomes: Mapping[Job, Outcome]) -> None:
        """Keep what nobody glanced at, and say which runs did not end well."""
        for job, outcome in outcomes.items():
            self.keep(job)
            if outcome.text:
                self.say(f"{job.name} {outcome.status}: {outcome.text}", f"its log: {job.log}")

    def _measure(self, job: Job, run: Run, measure: Callable[[Run], dict[str, Any]]) -> None:
        """Other runs are under way: what goes wrong here is said, and does not end them."""
        try:
            values = measure(run) if run.status == "finished" else {"status": run.status}
        except Exception as error:  # noqa: BLE001  # a measurement may be the user's own code, which raises anything
            said = str(error) if isinstance(error, SkipwayError) else f"{type(error).__name__}: {error}"
            self.say(f"{job.name}: not measured: {said}")
            return
        self._results.write_measured(self._study.id, run.spec, values)

    def say(self, text: str, more: str = "") -> None:
        """What went wrong."""
        self.troubles.append(text)
        self._listener.noted(f"{text}\n    {more}" if more else text)


def study_outcome(
    study: str | Study,
    budget: Budget,
    *,
    results: Results | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
) -> StudyOutcome:
    """What is on record of a study; trains nothing and needs no torch.

    Args:
        study: its id, or a `Study`.
        budget: of the runs.
        results: where records are kept.
        seeds: runs of each row; by default the budget's.
        only: labels of rows; empty for all.
    """
    found = as_study(study)
    results = results or Results()
    rows = []
    for row, specs in _specs(found, budget, root=None, seeds=seeds, only=only).items():
        records = {spec.seed: record for spec in specs if (record := results.read_record(spec)) is not None}
        measured = {
            spec.seed: values
            for spec in specs
            if found.measure is not None and (values := results.read_measured(found.id, spec)) is not None
        }
        rows.append(RowRuns(row=row, planned=len(specs), records=records, measured=measured))
    return StudyOutcome(study=found, budget=budget, rows=tuple(rows))


def _specs(
    study: Study, budget: Budget, *, root: str | None, seeds: int | None, only: Sequence[str]
) -> dict[Row, list[RunSpec]]:
    """The runs of each row, seed by seed."""
    numbers = seeds_from(study.seeds(budget) if seeds is None else seeds, 0)
    rows = {row: row_spec(study, row, budget, root=root) for row in rows_named(study, budget, only)}
    return {row: [replace(spec, seed=seed) for seed in numbers] for row, spec in rows.items()}


def row_spec(study: Study, row: Row, budget: Budget, *, root: str | None) -> RunSpec:
    """Of the runs of a row, with the first seed.

    Args:
        study: of the row.
        row: which.
        budget: of the runs.
        root: folder in which the data lies, if it is of those that lie in files; None for the usual places.
    """
    settings = row.settings or study.settings(budget)
    data = settings.data
    if data.root is None and data.name in _LIES_SOMEWHERE:
        data = replace(data, root=root)
    return replace(settings, model=row.model, data=data)


def rows_named(study: Study, budget: Budget, labels: Sequence[str] = ()) -> tuple[Row, ...]:
    """Rows of a study by their labels; all where none is given.

    Args:
        study: which.
        budget: rows may differ by budget.
        labels: of the rows; those of several groups that have a label are all meant.

    Raises:
        UnknownNameError: a row that the study has not.
    """
    rows = study.rows(budget)
    known = list(dict.fromkeys(row.label for row in rows))
    for label in labels:
        if label not in known:
            raise UnknownNameError(f"row of {study.id}", label, known)
    return tuple(row for row in rows if not labels or row.label in labels)


def is_wanted(study: Study, spec: RunSpec, results: Results) -> bool:
    """Whether a run, or what is measured on its net, is not on record.

    Args:
        study: whose run.
        spec: of the run.
        results: what is on record.
    """
    if results.read_record(spec) is None:
        return True
    return study.measure is not None and results.read_measured(study.id, spec) is None


def _jobs(missing: Sequence[RunSpec], specs: Mapping[Row, Sequence[RunSpec]], out: Path, threads: int) -> list[Job]:
    """A job for each run, with a name that no other has: rows may train one net by different recipes."""
    names = Counter(_job_name(spec) for spec in missing)
    labels = {run_name(spec): row.label for row, own in specs.items() for spec in own}

    def name(spec: RunSpec) -> str:
        plain = _job_name(spec)
        return plain if names[plain] == 1 else f"{plain}, {labels[run_name(spec)]}"

    return [_job(spec, name(spec), out, threads) for spec in missing]


def _job_name(spec: RunSpec) -> str:
    return f"{spec.model} seed {spec.seed}"


def _job(spec: RunSpec, name: str, out: Path, threads: int) -> Job:
    stem = run_name(spec)
    folder = RunFolder(out / stem)
    # A run that was begun keeps its own threads, and its folder's place of the data.
    begun = folder.read_spec() if there(folder.spec_path) else None
    if begun is not None and told_apart_by(begun) != told_apart_by(spec):
        raise SkipwayError(f"{folder.path} holds a run of another spec", "the run that its name says", "another --out")
    return Job(
        name=name, spec=begun or replace(spec, threads=threads), folder=folder.path.absolute(),
        log=(out / "logs" / f"{stem}.txt").absolute(),
    )  # fmt: skip


def _check(jobs: Sequence[Job]) -> None:
    """Refuse before the first run what can be refused: each net is built once, its data opened."""
    from skipway.study.jobs.check import check_runs

    by_settings: dict[RunSpec, list[str]] = {}
    for job in jobs:
        by_settings.setdefault(replace(job.spec, model="", seed=0, threads=None), []).append(job.spec.model)
    for settings, models in by_settings.items():
        check_runs(settings, list(dict.fromkeys(models)))
