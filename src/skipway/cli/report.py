"""`skipway report`: what lies in run and comparison folders, told again. Nothing here loads torch."""

from pathlib import Path
from typing import Annotated

import typer

from skipway.cli.failures import UsageProblemError
from skipway.cli.result import check_html

__all__ = ["report_command"]


def report_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="A comparison, or one or several runs.", show_default=False)
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the HTML report goes. Default: report.html in a single folder."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the JSON report to standard output, nothing else.")
    ] = False,
) -> int:
    """Report on runs and comparisons again, from their folders alone."""
    from skipway.report import dumps, write_html
    from skipway.report.console import show
    from skipway.study.comparison.comparison import load_comparison
    from skipway.study.comparison.runs import runs_dict, runs_parts, runs_report
    from skipway.study.comparison.view import comparison_parts, comparison_report
    from skipway.train.folder import there
    from skipway.train.run import load_run

    check_html(html)
    compared = [folder for folder in folders if there(folder / "comparison.json")]
    if compared and len(folders) > 1:
        raise UsageProblemError(
            f"{len(folders)} folders, of which {compared[0]} holds a comparison", "one comparison, or runs only"
        )
    if compared:
        comparison = load_comparison(compared[0])
        values, parts = comparison.to_dict(), comparison_parts(comparison)
        whole, title = comparison_report(comparison), f"skipway compare: {', '.join(comparison.models)}"
    else:
        runs = [load_run(folder) for folder in folders]
        values, parts, whole = runs_dict(runs), runs_parts(runs), runs_report(runs)
        title = f"skipway: {', '.join(dict.fromkeys(run.spec.model for run in runs))}"
    if json:
        print(dumps(values))
    else:
        show(parts)
        if html is None and len(folders) == 1:
            html = folders[0] / "report.html"
    if html is not None:
        written = write_html(html, whole, title=title)
        if not json:
            print(f"report: {written}")
    return 0
