"""`skipway study`: a published table, or a question, trained and set beside what was published."""

from pathlib import Path
from typing import Annotated

import typer

from skipway.cli import study_options as o
from skipway.cli.compare_display import CompareDisplay
from skipway.cli.complete import complete_study
from skipway.cli.failures import INTERRUPTED, as_usage
from skipway.cli.result import check_html, show_result
from skipway.cli.train_options import whole_path

__all__ = ["study_command"]

INCOMPLETE = 1


def study_command(  # noqa: PLR0913, PLR0917  # one parameter for each option of the command line
    study: Annotated[
        str, typer.Argument(metavar="ID", help="As skipway list studies has it.", autocompletion=complete_study)
    ],
    budget: o.Budget = "quick",
    results: o.Results = Path("results"),
    out: o.Out = Path("runs/studies"),
    root: o.Root = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Runs of each row. Default: the study's.")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Only this row; may be repeated. Default: all.")
    ] = None,
    workers: o.Workers = None,
    launcher: o.Launcher = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing: say what it would take, by what one step takes here.")
    ] = False,
    json: o.Json = False,
    html: o.Html = None,
) -> int:
    """Train what a study asks for, as far as it is not on record, and report it beside the published table."""
    from skipway.study.budgets import as_budget
    from skipway.study.conduct import conduct, rows_named
    from skipway.study.jobs.launch import launcher_named
    from skipway.study.published import STUDIES
    from skipway.study.records.results import Results

    check_html(html)
    with as_usage("--budget"):
        checked = as_budget(budget)
    with as_usage("study"):
        found = STUDIES[study]
    rows = tuple(row or ())
    with as_usage("--row"):
        rows_named(found, checked, rows)
    with as_usage("--launcher"):
        launcher_named(launcher)
    data = whole_path(root)
    if dry_run:
        from skipway.study.projection.projection import project

        projected = project(
            found, checked, results=Results(results), root=data, seeds=seeds, only=rows, workers=workers
        )
        show_result(projected, json=json, html=html)
        return 0
    with CompareDisplay(stderr=json) as display:
        outcome = conduct(
            found, checked, results=Results(results), out=out, root=data, seeds=seeds, only=rows, workers=workers,
            launcher=launcher, listener=display,
        )  # fmt: skip
    show_result(outcome, json=json, html=html)
    if outcome.complete:
        return 0
    return INTERRUPTED if outcome.interrupted and not outcome.troubles else INCOMPLETE
