"""Who is told what happens in a training: a progress display, a parent process, a notebook."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from skipway.spec import RunSpec

__all__ = ["Listener", "Logged"]

_LOG: Final = logging.getLogger(__name__)


class Listener:
    """Is told what happens; does nothing with it. Override what you want to know."""

    def started(self, spec: RunSpec, *, step: int, facts: str) -> None:
        """Training begins, or goes on.

        Args:
            spec: of the run.
            step: steps that are done.
            facts: how it is computed, in one line.
        """

    def measured(self, line: dict[str, Any]) -> None:
        """A line of metrics was written: ``step`` with ``loss`` or with ``test_error``."""

    def noted(self, text: str) -> None:
        """Something that a person should know."""

    def ended(self, result: dict[str, Any]) -> None:
        """The run is over; `result` is what ``result.json`` holds."""


class Logged(Listener):
    """Writes what a person should know to the log, as warnings; the rest is in the run's folder."""

    def noted(self, text: str) -> None:
        """Write it."""
        _LOG.warning(text)
