"""`skipway claims`: statements about residual networks, measured, each with a verdict."""

import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skipway.cli import study_options as o
from skipway.cli.compare_display import CompareDisplay
from skipway.cli.complete import complete_claim
from skipway.cli.failures import INTERRUPTED, as_usage
from skipway.cli.result import check_html, show_result
from skipway.cli.train_options import whole_path

if TYPE_CHECKING:
    from skipway.study.examine import Examined

__all__ = ["claims_command"]

TROUBLE = 1


def claims_command(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID…]", help="As skipway list claims has them. Default: all.", autocompletion=complete_claim
        ),
    ] = None,
    budget: o.Budget = "quick",
    results: o.Results = Path("results"),
    out: o.Out = Path("runs/studies"),
    root: o.Root = None,
    workers: o.Workers = None,
    json: o.Json = False,
    html: o.Html = None,
) -> int:
    """Measure statements about residual networks, and say of each whether it holds by its criterion."""
    from skipway.study.budgets import as_budget
    from skipway.study.claim import CLAIMS
    from skipway.study.examine import examine
    from skipway.study.records.results import Results

    check_html(html)
    with as_usage("--budget"):
        checked = as_budget(budget)
    with as_usage("claims"):
        names = [name for name in dict.fromkeys(ids or ()) if CLAIMS[name]]
    with CompareDisplay(stderr=json) as display:
        number, of = count(1), len(names) or len(CLAIMS)

        def told(examined: "Examined") -> None:
            display.noted(f"{next(number)} of {of} · {examined.claim.id}: {examined.judgement.verdict}")

        try:
            findings = examine(
                names, checked, results=Results(results), out=out,
                root=whole_path(root), workers=workers, listener=display,
                told=told,
            )  # fmt: skip
        except KeyboardInterrupt:
            print(f"stopped; verdicts so far are in {results}, and the same command goes on", file=sys.stderr)
            return INTERRUPTED
    show_result(findings, json=json, html=html)
    return TROUBLE if any(examined.trouble for examined in findings.examined) else 0
