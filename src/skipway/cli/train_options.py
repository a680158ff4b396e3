"""Options that `train` and `compare` share, and the spec that they mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skipway.cli.complete import complete_from
from skipway.cli.failures import UsageProblemError, as_usage

if TYPE_CHECKING:
    from skipway.spec import RunSpec

__all__ = [
    "Accelerator", "Augment", "Batch", "ChannelsLast", "CheckpointEvery", "Compile", "Context", "Data", "Devices",
    "Download", "ImageSize", "Inspected", "LogEvery", "LogTo", "Lr", "Memory", "Normalize", "Precision", "Recipe",
    "Root", "Steps", "Strategy", "TestEvery", "TestSize", "Threads", "TrainOptions", "TrainSize", "WeightDecay",
    "alone_with_resume", "typed", "whole_path",
]  # fmt: skip

DATA: Final = ("digits", "cifar10", "cifar100", "fashion_mnist", "imagenet", "text", "reverse")
RECIPES: Final = ("quick", "he2016-cifar", "he2016-short", "he2016-imagenet", "gpt-small")
# Those of the spec, which the start of every command need not load.
MEMORY: Final = ("keep", "recompute", "checkpoint", "reversible", "auto")
COMPILE: Final = ("none", "units", "model")

Data = Annotated[
    str,
    typer.Option(
        metavar="NAME|DIR",
        help=f"{', '.join(DATA)}, or a folder of class folders.",
        autocompletion=complete_from(DATA),
    ),
]
Root = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder in which the data set lies. Default: the usual places.")
]
ImageSize = Annotated[int | None, typer.Option(min=1, metavar="P", help="Side in pixels that images are resized to.")]
TrainSize = Annotated[int | None, typer.Option(min=1, metavar="N", help="Use so many training samples.")]
TestSize = Annotated[int | None, typer.Option(min=1, metavar="N", help="Use so many test samples.")]
Augment = Annotated[str, typer.Option(metavar="auto|crop-flip|crop|none", help="Augmentation of images.")]
Normalize = Annotated[
    str | None,
    typer.Option(metavar="channel|pixel", help="By channel, or by the mean image. Default: the recipe's."),
]
Context = Annotated[int, typer.Option(min=2, metavar="T", help="Tokens in a sample of text.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch missing files.")]
Recipe = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"{', '.join(RECIPES)}. Default: quick for images, gpt-small for tokens.",
        autocompletion=complete_from(RECIPES),
    ),
]
Steps = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Optimiser steps; warm-up and milestones scale along.")
]
Batch = Annotated[int | None, typer.Option("--batch", min=1, metavar="N", help="Samples in a step, over all devices.")]
Lr = Annotated[float | None, typer.Option(metavar="RATE", help="Peak learning rate. Default: the recipe's.")]
WeightDecay = Annotated[float | None, typer.Option(metavar="W", help="Weight decay. Default: the recipe's.")]
Precision = Annotated[
    str, typer.Option(metavar="P", help="auto, 32-true, bf16-mixed, 16-mixed … auto: bf16 where the hardware has it.")
]
ChannelsLast = Annotated[
    bool | None,
    typer.Option("--channels-last/--channels-first", help="Layout of images. Default: last, for convolutions."),
]
Memory = Annotated[
    str,
    typer.Option(
        metavar="|".join(MEMORY),
        help="Keep activations, or compute some, or nearly all, of them again; reversible: from outputs, with a design"
        " that can be inverted; auto: the fastest that fits.",
        autocompletion=complete_from(MEMORY),
    ),
]
ResidualInFp32 = Annotated[
    bool | None,
    typer.Option(
        "--residual-in-fp32/--no-residual-in-fp32",
        help="Under autocast, keep the stream in float32, with branches in 16 bits. Default: for reversible designs.",
    ),
]
Compile = Annotated[
    str,
    typer.Option(
        "--compile",
        metavar="|".join(COMPILE),
        help="torch.compile each kind of unit once, or the whole model, which takes longer the deeper it is.",
        autocompletion=complete_from(COMPILE),
    ),
]
Accelerator = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, mps …")]
Devices = Annotated[int, typer.Option(min=1, metavar="N", help="Devices, or processes on the CPU.")]
Strategy = Annotated[str, typer.Option(metavar="NAME", help="auto, ddp, fsdp2, or another of Lightning Fabric's.")]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="Processor threads of each process.")]
CheckpointEvery = Annotated[int, typer.Option(min=0, metavar="N", help="Steps between checkpoints; 0: at the end.")]
LogEvery = Annotated[int, typer.Option(min=1, metavar="N", help="Steps between lines of metrics.")]
TestEvery = Annotated[int, typer.Option(min=0, metavar="N", help="Steps between tests; 0: at the end.")]
LogTo = Annotated[str | None, typer.Option("--log", metavar="tensorboard", help="Also write scalars there.")]
Inspected = Annotated[bool, typer.Option("--inspect/--no-inspect", help="Inspect the net at the start and the end.")]


def whole_path(folder: Path | None) -> str | None:
    """A folder as it is found from anywhere; None for none."""
    return None if folder is None else str(folder.expanduser().absolute())


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What the shared options say, as they were typed."""

    data: str
    root: Path | None
    image_size: int | None
    train_size: int | None
    test_size: int | None
    augment: str
    normalize: str | None
    context: int
    download: bool
    recipe: str | None
    steps: int | None
    batch: int | None
    lr: float | None
    weight_decay: float | None
    precision: str
    channels_last: bool | None
    memory: str
    residual_in_fp32: bool | None
    compile: str
    accelerator: str
    devices: int
    strategy: str
    threads: int | None
    checkpoint_every: int
    log_every: int
    test_every: int
    inspect: bool

    def spec(self, model: str, seed: int) -> RunSpec:
        """The run of one model that these options mean.

        Raises:
            UsageProblemError: a value that an option does not take.
        """
        from dataclasses import replace

        from skipway.spec import DataSpec, RunSpec
        from skipway.train.plan import plan_recipe

        # Literal types are checked by the records themselves, which name what they expected.
        words: dict[str, Any] = {"augment": self.augment, "normalize": self.normalize or "channel"}
        with as_usage("--data"):
            # A run is resumed from anywhere, so the folder that it reads is kept whole.
            folder = self.data not in DATA and Path(self.data).is_dir()
            data = DataSpec(
                name=str(Path(self.data).absolute()) if folder else self.data,
                root=whole_path(self.root),
                image_size=self.image_size, train_size=self.train_size, test_size=self.test_size,
                context=self.context, download=self.download, **words,
            )  # fmt: skip
        with as_usage("--recipe"):
            recipe = plan_recipe(
                self.recipe, data, steps=self.steps, batch_size=self.batch, lr=self.lr, weight_decay=self.weight_decay
            )
        if self.normalize is None:
            data = replace(data, normalize=recipe.normalize)
        modes: dict[str, Any] = {"memory": self.memory, "compile": self.compile}
        with as_usage("train"):
            return RunSpec(
                model=model, data=data, recipe=recipe, seed=seed, precision=self.precision,
                channels_last=self.channels_last, accelerator=self.accelerator, devices=self.devices,
                strategy=self.strategy, threads=self.threads, checkpoint_every=self.checkpoint_every,
                log_every=self.log_every, test_every=self.test_every, inspect=self.inspect,
                residual_in_fp32=self.residual_in_fp32, **modes,
            )  # fmt: skip


def typed(context: typer.Context, name: str) -> bool:
    """Whether an option was typed, rather than left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def alone_with_resume(context: typer.Context, allowed: set[str], what: str) -> None:
    """See to it that --resume comes with no option that the kept spec decides.

    Args:
        context: of the command.
        allowed: parameters that may come with it.
        what: whose file says everything else, e.g. ``"the run's own spec"``.

    Raises:
        UsageProblemError: another option was typed.
    """
    given = [name for name in context.params if name not in {"resume", *allowed} and typed(context, name)]
    if given:
        raise UsageProblemError(f"--resume with {', '.join(given)}", f"--resume DIR alone: {what} says everything else")
