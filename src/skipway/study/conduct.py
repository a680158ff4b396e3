"""Carry a study out: every run that is not on record yet, a record as each ends, then what is measured on the nets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skipway.errors import SkipwayError
from skipway.study.launch import launcher_named
from skipway.study.listen import StudyListener
from skipway.study.machine import worker_devices, workers_and_threads
from skipway.study.outcome import RowRuns, StudyOutcome
from skipway.study.plan import seeds_from
from skipway.study.provenance import code_commit
from skipway.study.published import STUDIES
from skipway.study.record import Record, same_anywhere
from skipway.study.results import Results, run_name
from skipway.study.watch import Watch
from skipway.study.worker import Job, Outcome, check_not_importing
from skipway.train.folder import RunFolder
from skipway.train.run import load_run

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from skipway.spec import RunSpec
    from skipway.study.budgets import Budget
    from skipway.study.published import Row, Study

__all__ = ["conduct", "study_outcome"]


def conduct(  # noqa: PLR0913  # keywords of one call, all optional
    study: str | Study,
    budget: Budget = "quick",
    *,
    results: Results | None = None,
    out: str | Path = "runs/studies",
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
        root: folder in which the data lies; None for the usual places.
        seeds: runs of each row; by default the budget's.
        only: labels of the rows to run; empty for all.
        workers: runs at a time; by default one for each GPU, or for each core of the processor.
        launcher: ``"local"`` or ``"ray"``.
        listener: is told how it goes on.

    Raises:
        SkipwayError: an unknown study, row or launcher, or data that is not there, before anything is started.
    """
    check_not_importing()
    found = STUDIES[study] if isinstance(study, str) else study
    results, listener = results or Results(), listener or StudyListener()
    run_jobs = launcher_named(launcher)
    specs = _specs(found, budget, root=root, seeds=seeds, only=only)
    flat = [spec for k in range(max(map(len, specs.values()))) for row in specs.values() for spec in row[k : k + 1]]
    missing = list({run_name(spec): spec for spec in flat if _wanted(found, spec, results)}.values())
    if missing:
        settings = found.settings(budget)
        at_a_time, threads = workers_and_threads(len(missing), settings, workers)
        jobs = [_job(spec, Path(out), threads) for spec in missing]
        listener.noted(
            f"{found.id} at budget {budget}: {len(missing)} of {len(flat)} runs to do, {at_a_time} at a time, "
            f"each recorded in {results.path} as it ends"
        )
        watch, kept = Watch(jobs), set[Job]()

        def glance(running: Collection[Job], outcomes: Mapping[Job, Outcome]) -> None:
            for job in outcomes.keys() - kept:
                kept.add(job)
                _keep(found, job, results)
            listener.moved(watch.states(running, outcomes))

        outcomes = run_jobs(
            jobs, workers=at_a_time, threads=threads, devices=worker_devices(settings), glance=glance,
            stopping=listener.stopping,
        )  # fmt: skip
        for job in jobs:
            if job in outcomes and job not in kept:
                _keep(found, job, results)
        for job, outcome in outcomes.items():
            if outcome.text:
                listener.noted(f"{job.name} {outcome.status}: {outcome.text}\n    its log: {job.log}")
    return study_outcome(found, budget, results=results, seeds=seeds, only=only)


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
    found = STUDIES[study] if isinstance(study, str) else study
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
    rows = study.rows(budget)
    labels = {row.label for row in rows}
    for label in only:
        if label not in labels:
            raise SkipwayError(f"no row {label!r} in {study.id}", "one of: " + ", ".join(sorted(labels)))
    numbers = seeds_from(study.seeds(budget) if seeds is None else seeds, 0)

    def spec(row: Row, seed: int) -> RunSpec:
        settings = row.settings or study.settings(budget)
        data = replace(settings.data, root=root if settings.data.root is None else settings.data.root)
        return replace(settings, model=row.model, seed=seed, data=data)

    return {row: [spec(row, seed) for seed in numbers] for row in rows if not only or row.label in only}


def _wanted(study: Study, spec: RunSpec, results: Results) -> bool:
    """Whether a run, or what is measured on its net, is not on record."""
    if results.read_record(spec) is None:
        return True
    return study.measure is not None and results.read_measured(study.id, spec) is None


def _job(spec: RunSpec, out: Path, threads: int) -> Job:
    name = run_name(spec)
    folder = RunFolder(out / name)
    # A run that was begun keeps its own threads, and its folder's place of the data.
    begun = folder.read_spec() if folder.spec_path.exists() else None
    if begun is not None and same_anywhere(begun) != same_anywhere(spec):
        raise SkipwayError(f"{folder.path} holds a run of another spec", "the run that its name says", "another --out")
    return Job(
        name=f"{spec.model} seed {spec.seed}", spec=begun or replace(spec, threads=threads),
        folder=folder.path.absolute(), log=(out / "logs" / f"{name}.txt").absolute(),
    )  # fmt: skip


def _keep(study: Study, job: Job, results: Results) -> None:
    """Write the record of a run that is over, and what the study measures on its net."""
    if not RunFolder(job.folder).finished:
        return
    run = load_run(job.folder)
    if results.read_record(run.spec) is None:
        results.write_record(Record.of(run, commit=code_commit()))
    if study.measure is not None and results.read_measured(study.id, run.spec) is None:
        values = study.measure(run) if run.status == "finished" else {"status": run.status}
        results.write_measured(study.id, run.spec, values)
