"""`skipway predict`: what a trained run says of images."""

from pathlib import Path
from typing import Annotated, Any

import typer

from skipway.cli.failures import UsageProblemError

__all__ = ["predict_command"]


def predict_command(
    run: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a finished run that was trained on images.")
    ],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE…", help="Files, in any format that Pillow reads.")],
    top: Annotated[int, typer.Option(min=1, metavar="K", help="Classes shown of each, the likeliest first.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print JSON to standard output, nothing else.")] = False,
) -> int:
    """Classify image files with a trained run; they are cut and normalised as its data was in tests."""
    import torch

    from skipway.parts import Table
    from skipway.report import dumps
    from skipway.report.console import show
    from skipway.train.run import load_run

    found = load_run(run)
    classes = found.environment["data"]["num_classes"]
    if top > classes:
        raise UsageProblemError(f"--top {top}, but the run has {classes} classes", f"1 to {classes}")
    transform, net = found.transform(), found.model()
    with torch.inference_mode():
        odds = torch.cat([net(transform(path)).double().softmax(1) for path in images])
    values, places = odds.topk(top)
    names = found.classes or tuple(map(str, range(classes)))
    said: list[dict[str, Any]] = [
        {"image": str(path), "classes": [names[k] for k in row], "probabilities": probabilities}
        for path, row, probabilities in zip(images, places.tolist(), values.tolist(), strict=True)
    ]
    if json:
        print(dumps({"schema": "skipway.prediction/1.0", "run": str(run), "model": found.spec.model, "images": said}))
        return 0
    rows = tuple(
        (
            one["image"],
            *(f"{name} {100 * p:.1f} %" for name, p in zip(one["classes"], one["probabilities"], strict=True)),
        )
        for one in said
    )
    show([Table(columns=("image", "class", *(f"{k}." for k in range(2, top + 1))), rows=rows)])
    return 0
