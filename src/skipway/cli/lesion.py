"""`skipway lesion`: what a model loses without some of its units."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipway.cli.complete import complete_model
from skipway.cli.failures import UsageProblemError, as_usage
from skipway.cli.result import check_html
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from skipway.data import Dataset
    from skipway.models.load import Batch
    from skipway.spec import DataSpec
    from skipway.units.lesion.record import Lesion

__all__ = ["lesion_command"]


def lesion_command(  # noqa: PLR0913, PLR0917  # one parameter for each option of the command line
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|DIR",
            help="A model as inspect takes it, or the folder of a finished run.",
            autocompletion=complete_model,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|DIR",
            help="Test samples to count errors on. Default: the run's own; for a model none, and the change of its "
            "output on noise is measured.",
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder in which the data set lies. Default: the usual places.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Test samples at most.")] = 1000,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Samples in a batch.")] = 100,
    delete: Annotated[
        str,
        typer.Option(
            metavar="each|K|K-M|PATH,…",
            help="Each unit by itself, K random ones, or these together; joined by commas; none for nothing.",
        ),
    ] = "each",
    swap: Annotated[bool, typer.Option("--swap", help="Also swap each unit with the next of its structure.")] = False,
    blocks: Annotated[
        str | None,
        typer.Option(
            metavar="auto|PATH,…", help="For nets without units: modules to replace by the identity where they fit."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Random draws for each K.")] = 10,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Load .safetensors or .pt weights, all or none.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report with its charts as one HTML file.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the JSON report to standard output, nothing else.")
    ] = False,
) -> int:
    """Delete or swap residual units of a trained model, and show what it loses; nothing is trained."""
    from skipway.report import dumps, lesion_parts
    from skipway.report.console import show
    from skipway.units.lesion import lesion
    from skipway.units.lesion.sites import NoUnitsError

    check_html(html)
    with as_usage("--delete"):
        chosen = _chosen(delete)
    # What the user's own code prints must not mix with the JSON on standard output.
    with redirect_stdout(sys.stderr) if json else nullcontext():
        net, name, found_on, labelled = _model(model, data, root, weights, batch)
        options: dict[str, Any] = {
            "delete": chosen, "swap": swap, "draws": seeds, "name": name,
            "blocks": blocks if blocks in (None, "auto") else blocks.split(","),
        }  # fmt: skip
        try:
            if labelled is None:
                found: Lesion = lesion(net, found_on, **options)
            else:
                found = lesion(net, data=_test_batches(labelled, samples, batch), **options)
        except NoUnitsError as error:
            raise SkipwayError(
                error.given, error.expected.replace("blocks=", "--blocks"), f"skipway lesion {model} --blocks auto"
            ) from None
    if json:
        print(dumps(found.to_dict()))
    else:
        show(lesion_parts(found))
    if html is not None:
        written = found.to_html(html)
        if not json:
            print(f"report: {written}")
    return 0


def _chosen(text: str) -> Any:
    """``each,1-10`` as the API reads it."""
    if text in ("each", "none"):
        return None if text == "none" else text
    listed: list[int | str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ends = (first, last) if dash else (first,)
        if all(end.isdigit() for end in ends):
            if not part.isascii():  # raised digits are digits, and no numbers
                raise UsageProblemError(
                    f"{part!r} is no number", "each, a number, a range or paths", "--delete each,1-10"
                )
            listed += range(int(first), int(last if dash else first) + 1)
        elif part:
            listed.append(part)
    if not listed:
        raise UsageProblemError(f"{text!r}", "each, a number, a range or paths", "--delete each,1-10")
    return listed


def _model(
    name: str, data: str | None, root: Path | None, weights: Path | None, size: int
) -> tuple[nn.Module, str, Batch | None, Dataset | None]:
    """The model, what to call it, what to call it with, and labelled data."""
    import torch

    from skipway.data import open_data
    from skipway.models.load import load_model, load_weights
    from skipway.models.load_for import load_for
    from skipway.train.run import load_run

    folder = Path(name)
    if folder.is_dir():
        if weights is not None:
            raise UsageProblemError(f"--weights {weights} for the run in {folder}", "no weights: the run has its own")
        run = load_run(folder)
        spec = _spec(run.spec.data, data, root)
        return run.model(), f"{run.spec.model} ({folder.name})", None, open_data(spec) if spec is not None else None
    torch.manual_seed(0)
    spec = _spec(None, data, root)
    if spec is not None:
        dataset = open_data(spec)
        model = load_for(name, num_classes=dataset.info.num_classes, input_shape=dataset.info.input_shape)
        if weights is not None:
            load_weights(model, weights)
        return model, name, None, dataset
    loaded = load_model(name, batch_size=size, weights=weights)
    if loaded.batch is None:
        raise SkipwayError(
            f"{loaded.label} does not say what it is called with", "a model that names its input, or data",
            f"skipway lesion {name} --data cifar10",
        )  # fmt: skip
    return loaded.model, loaded.label, loaded.batch, None


def _spec(own: DataSpec | None, data: str | None, root: Path | None) -> DataSpec | None:
    from dataclasses import replace

    from skipway.spec import DataSpec

    place = str(root) if root is not None else None
    if data is not None:
        return DataSpec(name=data, root=place)
    if own is None:
        if place is not None:
            raise UsageProblemError(f"--root {place} without data", "--data NAME")
        return None
    return own if place is None else replace(own, root=place)


def _test_batches(data: Dataset, samples: int, size: int) -> Iterator[Any]:
    """The first test samples, in batches."""
    import torch

    left = samples
    for inputs, targets in data.test(batch_size=min(size, samples)):
        images = inputs[:left]
        if images.dim() == 4:  # as in training: a third less time
            images = images.contiguous(memory_format=torch.channels_last)
        yield images, targets[:left]
        left -= len(targets)
        if left <= 0:
            return
