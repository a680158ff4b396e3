"""`skipway.compare`: models × seeds under one budget, in parallel, each run resumable and none repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skipway.errors import SkipwayError
from skipway.report.numbers import counted
from skipway.spec import DataSpec, RunSpec
from skipway.study.comparison.comparison import Comparison, load_comparison
from skipway.study.comparison.folder import ComparisonFolder
from skipway.study.jobs.launch import launcher_named
from skipway.study.jobs.listen import StudyListener
from skipway.study.jobs.machine import worker_devices, workers_and_threads
from skipway.study.jobs.plan import ComparisonPlan, check_models, seeds_from, tests_along
from skipway.study.jobs.watch import Watch
from skipway.study.jobs.worker import Job, Outcome, check_not_importing
from skipway.train.folder import RunFolder, there
from skipway.train.plan import plan_data, safe_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from skipway.spec import RecipeSpec
    from skipway.study.jobs.launch import Launcher

__all__ = ["compare", "compare_settings", "resume_comparison"]


def compare(  # noqa: PLR0913  # stable keywords of the public API, all optional
    models: Sequence[str],
    data: str | DataSpec = "digits",
    *,
    out: str | Path | None = None,
    recipe: str | RecipeSpec | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    seeds: int = 3,
    base_seed: int = 0,
    test_every: int | None = None,
    workers: int | None = None,
    threads: int | None = None,
    launcher: str = "local",
    listener: StudyListener | None = None,
) -> Comparison:
    """Train models under one budget, each with several seeds, and say what can be said of their difference.

    Runs that lie finished in `out` are not repeated, those that were stopped go on; naming further models, or more
    seeds, adds to what is there. Processes are started, so a script calls this behind ``if __name__ == "__main__"``.

    Args:
        models: names (``"resnet56@preact"``, ``"tv:resnet18"``, ``"path/to/file.py:factory"``); the first is the
            reference.
        data: a name or a `DataSpec`.
        out: folder of the comparison; by default one under ``runs``, the same for the same settings.
        recipe: a name or a `RecipeSpec`; by default ``"quick"`` for images, ``"gpt-small"`` for tokens.
        steps: optimiser steps; by default the recipe's.
        batch_size: samples in a step; by default the recipe's.
        seeds: runs of each model, with the seeds `base_seed`, `base_seed` + 1 …
        base_seed: the first.
        test_every: steps between tests; by default a tenth of the steps.
        workers: runs at a time; by default one for each GPU, or for each core of the processor.
        threads: of the processor for each run; by default the cores are shared out.
        launcher: ``"local"`` for processes of this machine, ``"ray"`` for the workers of a Ray cluster.
        listener: is told how it goes on.

    Raises:
        SkipwayError: a model that is unknown, named twice or does not fit the data, before anything is started; a
            folder that holds something else.
    """
    wanted, planned = plan_data(data, recipe, steps=steps, batch_size=batch_size)
    every = tests_along(planned.steps) if test_every is None else test_every
    settings = RunSpec(model="", data=wanted, recipe=planned, threads=threads, test_every=every)
    return compare_settings(
        models, settings, out=out, seeds=seeds, base_seed=base_seed, workers=workers, launcher=launcher,
        listener=listener,
    )  # fmt: skip


def compare_settings(
    models: Sequence[str],
    settings: RunSpec,
    *,
    out: str | Path | None = None,
    seeds: int = 3,
    base_seed: int = 0,
    workers: int | None = None,
    launcher: str = "local",
    listener: StudyListener | None = None,
) -> Comparison:
    """As `compare`, with every setting of the runs.

    Args:
        models: names.
        settings: of every run; its model and seed are not used.
        out: folder of the comparison.
        seeds: runs of each model.
        base_seed: the first seed.
        workers: runs at a time.
        launcher: where runs are carried out.
        listener: is told how it goes on.
    """
    check_not_importing()
    launch, listener = launcher_named(launcher), listener or StudyListener()
    names, numbers = check_models(models), seeds_from(seeds, base_seed)
    if settings.devices != 1:
        raise SkipwayError(f"devices={settings.devices} for a comparison", "1: runs share the machine, not each other")
    settings = replace(settings, model="", seed=0)
    folder = ComparisonFolder(out or _default_folder(names, settings))
    old = folder.read_plan() if there(folder.plan_path) else None
    at_a_time, threads = workers_and_threads(len(names) * len(numbers), settings, workers)
    if settings.threads is None:
        settings = replace(settings, threads=old.settings.threads if old is not None else threads)
    plan = ComparisonPlan(models=names, seeds=numbers, settings=settings, workers=at_a_time)
    folder.check(plan)
    if old is not None:
        plan = replace(
            plan,
            models=old.models + tuple(name for name in names if name not in old.models),
            seeds=tuple(sorted({*old.seeds, *numbers})),
        )
        folder.check(plan)
        if names[0] != plan.reference:
            listener.noted(f"{folder.path} compares with {plan.reference}, which stays the reference")
    return _carry_out(plan, folder, launch, listener)


def resume_comparison(
    path: str | Path,
    *,
    workers: int | None = None,
    launcher: str = "local",
    listener: StudyListener | None = None,
) -> Comparison:
    """Go on with a comparison that was stopped.

    Args:
        path: its folder.
        workers: runs at a time, if others than before.
        launcher: where runs are carried out.
        listener: is told how it goes on.

    Raises:
        SkipwayError: no comparison lies there.
    """
    check_not_importing()
    launch = launcher_named(launcher)
    folder = ComparisonFolder(path)
    plan = folder.read_plan()
    if workers is not None:
        plan = replace(plan, workers=workers_and_threads(len(plan.pairs()), plan.settings, workers)[0])
    folder.check(plan)
    return _carry_out(plan, folder, launch, listener or StudyListener())


def _default_folder(models: Sequence[str], settings: RunSpec) -> Path:
    """``runs/compare-REFERENCE-DATA-DIGEST``: the same for the same settings, so that models and seeds add up."""
    data = safe_name(Path(settings.data.name).name)
    return Path("runs") / f"compare-{safe_name(models[0])}-{data}-{replace(settings, threads=None).digest()[:8]}"


def _carry_out(plan: ComparisonPlan, folder: ComparisonFolder, launch: Launcher, listener: StudyListener) -> Comparison:
    jobs = [
        Job(
            name=f"{model} seed {seed}", spec=plan.spec(model, seed), folder=folder.run(model, seed).path.absolute(),
            log=folder.log_path(model, seed).absolute(),
        )
        for model, seed in plan.pairs()
    ]  # fmt: skip
    to_do = [job for job in jobs if not RunFolder(job.folder).finished]
    if to_do:
        from skipway.study.jobs.check import check_runs

        check_runs(plan.settings, list(dict.fromkeys(job.spec.model for job in to_do)))
    with folder.locked():
        folder.write_plan(plan)
        listener.noted(_what_will_be_done(plan, jobs, to_do))
        watch = Watch(jobs)

        def glance(running: Collection[Job], outcomes: Mapping[Job, Outcome]) -> None:
            listener.moved(watch.states(running, outcomes))

        outcomes = launch(
            to_do, workers=plan.workers, threads=plan.settings.threads, devices=worker_devices(plan.settings),
            glance=glance, stopping=listener.stopping,
        )  # fmt: skip
        troubles = [_trouble(job, outcome) for job, outcome in outcomes.items() if outcome.text]
        for trouble in troubles:
            listener.noted(trouble)
        if not troubles and all(o.status in ("finished", "diverged") for o in outcomes.values()):
            _measure_speeds(plan, folder, listener)
        comparison = load_comparison(folder.path)
        if comparison.complete:
            comparison.to_html(folder.report_path)
    return comparison


def _what_will_be_done(plan: ComparisonPlan, jobs: Sequence[Job], to_do: Sequence[Job]) -> str:
    recipe, done = plan.settings.recipe, len(jobs) - len(to_do)
    begun = sum(there(RunFolder(job.folder).spec_path) for job in to_do)
    words = [
        f"{counted(len(plan.models), 'model')} × {counted(len(plan.seeds), 'seed')} on {plan.settings.data.name}",
        f"recipe {recipe.name}, {recipe.steps} steps of {recipe.batch_size}",
        f"{counted(len(to_do), 'run')} to do" + (f", {min(plan.workers, len(to_do))} at a time" * (len(to_do) > 1)),
    ]
    if done:
        words.append(f"{done} finished before and reused")
    if begun:
        words.append(f"{begun} resumed")
    return " · ".join(words)


def _trouble(job: Job, outcome: Outcome) -> str:
    log = f"\n    its log: {job.log}" if job.log.exists() else ""
    return f"{job.name} {outcome.status}: {outcome.text}{log}"


def _measure_speeds(plan: ComparisonPlan, folder: ComparisonFolder, listener: StudyListener) -> None:
    """Each model alone, where that has not been measured; one that cannot be is said and left out."""
    known = folder.read_speed()
    for model in plan.models:
        if model in known:
            continue
        from skipway.study.jobs.speed import measure_speed

        listener.measuring(model)
        try:
            known[model] = measure_speed(plan.spec(model, plan.seeds[0]))
        except (SkipwayError, RuntimeError) as error:
            listener.noted(f"the speed of {model} could not be measured: {error}")
            continue
        folder.write_speed(known)
