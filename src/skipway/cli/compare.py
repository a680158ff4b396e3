"""`skipway compare`: models × seeds under one budget, and the report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skipway.cli import train_options as o
from skipway.cli.compare_display import CompareDisplay
from skipway.cli.complete import complete_model
from skipway.cli.failures import INTERRUPTED, UsageProblemError
from skipway.cli.study_options import Launcher, Workers

if TYPE_CHECKING:
    from skipway.study.comparison.comparison import Comparison

__all__ = ["compare_command"]

INCOMPLETE = 1


def compare_command(  # noqa: PLR0913, PLR0917  # one parameter for each option of the command line
    context_: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME…", help="As for inspect; the first is the reference.", autocompletion=complete_model
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="K", help="Runs of each model.")] = 3,
    base_seed: Annotated[int, typer.Option(min=0, metavar="S", help="The first seed.")] = 0,
    workers: Workers = None,
    launcher: Launcher = "local",
    data: o.Data = "digits",
    root: o.Root = None,
    recipe: o.Recipe = None,
    steps: o.Steps = None,
    batch: o.Batch = None,
    lr: o.Lr = None,
    weight_decay: o.WeightDecay = None,
    image_size: o.ImageSize = None,
    train_size: o.TrainSize = None,
    test_size: o.TestSize = None,
    augment: o.Augment = "auto",
    normalize: o.Normalize = None,
    context: o.Context = 128,
    download: o.Download = False,
    precision: o.Precision = "auto",
    channels_last: o.ChannelsLast = None,
    memory: o.Memory = "keep",
    residual_in_fp32: o.ResidualInFp32 = None,
    compile_: o.Compile = "none",
    accelerator: o.Accelerator = "auto",
    threads: o.Threads = None,
    checkpoint_every: o.CheckpointEvery = 500,
    log_every: o.LogEvery = 10,
    test_every: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Steps between tests. Default: a tenth of the steps.")
    ] = None,
    inspect: o.Inspected = True,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder, new, empty, or of a comparison to add models or seeds to. Default: under runs/.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on with the comparison in this folder; takes no option but --workers and --launcher.",
        ),
    ] = None,
) -> int:
    """Train models side by side under one budget with several seeds, and report error, cost and signal."""
    if resume is not None:
        return _resumed(context_, resume, workers, launcher)
    if not models:
        raise UsageProblemError("no models", "names", "skipway compare plain56 resnet56 --data digits, or --resume DIR")
    from skipway.study.compare import compare_settings

    options = o.TrainOptions(
        data=data, root=root, image_size=image_size, train_size=train_size, test_size=test_size, augment=augment,
        normalize=normalize, context=context, download=download, recipe=recipe, steps=steps, batch=batch, lr=lr,
        weight_decay=weight_decay, precision=precision, channels_last=channels_last, memory=memory,
        residual_in_fp32=residual_in_fp32,
        compile=compile_, accelerator=accelerator, devices=1, strategy="auto", threads=threads,
        checkpoint_every=checkpoint_every, log_every=log_every, test_every=test_every or 0, inspect=inspect,
    )  # fmt: skip
    settings = options.spec("", 0)
    if test_every is None:
        from dataclasses import replace

        from skipway.study.jobs.plan import tests_along

        settings = replace(settings, test_every=tests_along(settings.recipe.steps))
    with CompareDisplay() as display:
        comparison = compare_settings(
            models, settings, out=out, seeds=seeds, base_seed=base_seed, workers=workers, launcher=launcher,
            listener=display,
        )  # fmt: skip
    return _reported(comparison, display)


def _resumed(context: typer.Context, folder: Path, workers: int | None, launcher: str) -> int:
    from skipway.study.compare import resume_comparison

    o.alone_with_resume(context, {"workers", "launcher"}, "the comparison's own file")
    with CompareDisplay() as display:
        comparison = resume_comparison(folder, workers=workers, launcher=launcher, listener=display)
    return _reported(comparison, display)


def _reported(comparison: "Comparison", display: CompareDisplay) -> int:
    from skipway.report.console import show
    from skipway.study.comparison.view import comparison_parts

    show(comparison_parts(comparison))
    if comparison.complete:
        print(f"report: {comparison.path / 'report.html'}")
        return 0
    print(f"to go on: skipway compare --resume {comparison.path}")
    broken = any(state.status in ("failed", "died") for state in display.states)
    return INCOMPLETE if broken else INTERRUPTED
