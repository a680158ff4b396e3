"""Options that `study`, `claims` and `compare` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skipway.cli.complete import complete_from
from skipway.cli.train_options import Root
from skipway.study.budgets import BUDGETS
from skipway.study.jobs.launch import LAUNCHERS

__all__ = ["Budget", "Html", "Json", "Launcher", "Out", "Results", "Root", "Workers"]

Budget = Annotated[
    str,
    typer.Option(
        metavar="|".join(BUDGETS),
        help="How much is spent: minutes, hours on a few cores, or what was published (GPUs).",
        autocompletion=complete_from(BUDGETS),
    ),
]
Results = Annotated[
    Path, typer.Option(metavar="DIR", help="Where records are kept: a small file for each run, no run twice.")
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where the run folders go, with weights.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Runs at a time. Default: one for each GPU, or core of the processor."),
]
Launcher = Annotated[
    str,
    typer.Option(
        metavar="|".join(LAUNCHERS),
        help="Processes of this machine, or the workers of a Ray cluster.",
        autocompletion=complete_from(LAUNCHERS),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the JSON report to standard output, nothing else.")]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the report with its figures as one HTML file.")
]
