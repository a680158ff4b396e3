"""A result on standard output, as text or JSON, and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from skipway.cli.failures import as_usage

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from rich.console import Group

__all__ = ["check_html", "show_result"]


class Result(Protocol):
    """What prints itself, and has JSON-ready values and a page."""

    def __rich__(self) -> Group:
        """The result for a terminal."""

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready values."""

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write it as one HTML file."""


def check_html(html: Path | None) -> None:
    """See that a page can be written there, before anything is computed.

    Raises:
        UsageProblemError: it cannot.
    """
    from skipway.report.files import check_target

    if html is not None:
        with as_usage("--html"):
            check_target(html)


def show_result(result: Result, *, json: bool, html: Path | None) -> None:
    """Print a result, and write its page where one is asked for.

    Args:
        result: what is shown.
        json: whether as JSON, with nothing else.
        html: where the page goes.
    """
    if json:
        from skipway.report import dumps

        print(dumps(result.to_dict()))
    else:
        from skipway.report.console import show_whole

        show_whole(result)
    if html is not None:
        written = result.to_html(html)
        if not json:
            print(f"report: {written}")
