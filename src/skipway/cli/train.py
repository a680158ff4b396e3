"""`skipway train`: one run, with a progress display."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipway.cli import train_options as o
from skipway.cli.complete import complete_model
from skipway.cli.failures import INTERRUPTED, UsageProblemError
from skipway.cli.training_display import TrainingDisplay

if TYPE_CHECKING:
    from skipway.train.run import Run

__all__ = ["train_command"]

DIVERGED = 1


def train_command(  # noqa: PLR0913, PLR0917  # one parameter for each option of the command line
    context_: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="As for inspect, e.g. resnet56@preact.", autocompletion=complete_model),
    ] = None,
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
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    precision: o.Precision = "auto",
    channels_last: o.ChannelsLast = None,
    memory: o.Memory = "keep",
    residual_in_fp32: o.ResidualInFp32 = None,
    compile_: o.Compile = "none",
    accelerator: o.Accelerator = "auto",
    devices: o.Devices = 1,
    strategy: o.Strategy = "auto",
    threads: o.Threads = None,
    checkpoint_every: o.CheckpointEvery = 500,
    log_every: o.LogEvery = 10,
    test_every: o.TestEvery = 0,
    log: o.LogTo = None,
    inspect: o.Inspected = True,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the run, new or empty. Default: one under runs/.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with the run in this folder; takes no other options but --devices."),
    ] = None,
) -> int:
    """Train a model and keep the run in a folder: metrics, checkpoints, weights, inspections at both ends."""
    if resume is not None:
        return _resumed(context_, resume, log, devices)
    if model is None:
        raise UsageProblemError("no model", "a name", "skipway train resnet20 --data digits, or --resume DIR")
    options = o.TrainOptions(
        data=data, root=root, image_size=image_size, train_size=train_size, test_size=test_size, augment=augment,
        normalize=normalize, context=context, download=download, recipe=recipe, steps=steps, batch=batch, lr=lr,
        weight_decay=weight_decay, precision=precision, channels_last=channels_last, memory=memory,
        residual_in_fp32=residual_in_fp32,
        compile=compile_, accelerator=accelerator, devices=devices, strategy=strategy, threads=threads,
        checkpoint_every=checkpoint_every, log_every=log_every, test_every=test_every, inspect=inspect,
    )  # fmt: skip
    spec = options.spec(model, seed)
    from skipway.train.fit import run_spec
    from skipway.train.plan import default_folder

    folder = out or default_folder(spec)
    with TrainingDisplay(folder) as display:
        run = run_spec(spec, folder, listener=display, log=log)
    return _code(run)


def _resumed(context: typer.Context, folder: Path, log: str | None, devices: int) -> int:
    from skipway.train.fit import resume

    o.alone_with_resume(context, {"log", "devices"}, "the run's own spec")
    with TrainingDisplay(folder) as display:
        run = resume(folder, listener=display, log=log, devices=devices if o.typed(context, "devices") else None)
    return _code(run)


def _code(run: "Run") -> int:
    codes: dict[str, Any] = {"finished": 0, "diverged": DIVERGED}
    return int(codes.get(run.status, INTERRUPTED))
