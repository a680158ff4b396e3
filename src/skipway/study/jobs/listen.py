"""Who is told how a comparison goes on: a display, a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RunState", "StudyListener"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where one run of a comparison stands.

    Args:
        name: model and seed.
        status: ``"waiting"``, ``"running"``, ``"finished"``, ``"diverged"``, ``"stopped"``, ``"failed"`` or ``"died"``.
        step: steps that are done.
        steps: steps of the whole run.
        loss: the last that was written, in nats; None before, and where the run diverged.
        test_error: of a run that is over, in percent; None where it diverged.
    """

    name: str
    status: str
    step: int
    steps: int
    loss: float | None = None
    test_error: float | None = None


class StudyListener:
    """Is told what happens; does nothing with it. Override what you want to know."""

    def noted(self, text: str) -> None:
        """Something that a person should know, in a sentence."""

    def moved(self, states: Sequence[RunState]) -> None:
        """Where all runs stand; called several times a second."""

    def stopping(self) -> None:
        """Somebody asked to stop; the runs that are under way finish their step and write a checkpoint."""

    def measuring(self, model: str) -> None:
        """The speed of a model is about to be measured alone."""
