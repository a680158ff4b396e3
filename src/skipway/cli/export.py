"""`skipway export`: a model as a file for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skipway.cli.complete import complete_model
from skipway.cli.failures import UsageProblemError, as_usage
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from skipway.models import Net

__all__ = ["export_command"]


def export_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME|DIR",
            help="One of our own models by name, or the folder of a finished run.",
            autocompletion=complete_model,
        ),
    ],
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="Where the ONNX file goes.", show_default=False)],
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples in every batch. Default: any number.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=1, metavar="P", help="Pixels of a side. Default: the model's own.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Load .safetensors or .pt weights, all or none.")
    ] = None,
    fold: Annotated[
        bool, typer.Option("--fold/--no-fold", help="Fold batch norms into the weights beside them, where exact.")
    ] = True,
) -> int:
    """Write a model as an ONNX file, and compare it with the model where onnxruntime is installed."""
    import importlib.util

    import torch

    from skipway.integrations.onnx import check_onnx_packages, check_onnx_target, export_onnx, onnx_difference

    check_onnx_packages()
    with as_usage("--onnx"):
        check_onnx_target(onnx)
    net = _model(model, image_size, weights)
    torch.manual_seed(0)
    example = net.dummy_input(batch or 2)
    written = export_onnx(net, onnx, batch=example, dynamic_batch=batch is None, folded=fold)
    sizes = ", ".join(map(str, net.default_cfg["input_size"]))
    print(f"{written}: {written.stat().st_size / 2**20:.1f} MiB, input ({'N' if batch is None else batch}, {sizes})")
    if importlib.util.find_spec("onnxruntime") is not None:
        print(f"largest difference in onnxruntime: {onnx_difference(net, written, example):.1e} of the largest output")
    return 0


def _model(name: str, image_size: int | None, weights: Path | None) -> Net:
    import torch

    from skipway.models import Net, create_model
    from skipway.models.load import load_model, load_weights
    from skipway.train.run import load_run

    folder = Path(name)
    torch.manual_seed(0)
    if folder.is_dir():
        for option, value in (("--image-size", image_size), ("--weights", weights)):
            if value is not None:
                raise UsageProblemError(f"{option} {value} for the run in {folder}", "neither: the run has its own")
        run = load_run(folder)
        net, label = run.model(), run.spec.model
    elif ":" in name or name.endswith(".py"):
        if image_size is not None:
            raise UsageProblemError(f"--image-size {image_size} for {name}", "the size that its own code gives it")
        net, label = load_model(name).model, name
    else:
        net, label = create_model(name, image_size=image_size), name
    if not isinstance(net, Net):
        raise SkipwayError(
            f"{label} is not one of our own models", "one that `skipway list models` shows",
            "torch.onnx.export(model, (batch,), 'model.onnx', dynamo=True)",
        )  # fmt: skip
    if weights is not None:
        load_weights(net, weights)
    return net
