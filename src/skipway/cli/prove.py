"""``skipway inspect --prove``: put findings to the test, with a display of how it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from typing_extensions import override

from skipway.cli.failures import as_usage
from skipway.cli.progress_display import ProgressDisplay
from skipway.errors import SkipwayError
from skipway.models.load import load_model
from skipway.study.prove import prove
from skipway.study.proving.remedies import remedies_for
from skipway.study.proving.trial import TrialSettings, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from skipway.diagnostics.inspection import Inspection
    from skipway.models.load import Batch, LoadedModel
    from skipway.study.proving.proof import Proof

__all__ = ["prove_findings"]


class _Display(ProgressDisplay, Watcher):
    """One bar for all trainings of a proof, on standard error."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
        )  # fmt: skip
        self._bar: Any = None

    @override
    def started(self, *, arms: list[str], seeds: int, steps: int, task: str) -> None:
        self.noted(f"proof: {len(arms)} ways × {seeds} seeds × {steps} steps on {task}")
        self._bar = self._progress.add_task("", total=len(arms) * seeds * steps)

    @override
    def moved(self, arm: str, seed: int, step: int, loss: float) -> None:
        self._progress.update(self._bar, advance=1, description=f"{arm}, seed {seed}: loss {loss:.3f}")


def prove_findings(
    inspection: Inspection, loaded: LoadedModel, batch: Batch, *, fix: str | None, steps: int
) -> tuple[list[Proof], list[str]]:
    """Prove every finding that there is a fix to try for, and say which have none.

    Args:
        inspection: what was found.
        loaded: the inspected model; its maker is asked for a new one for each seed.
        batch: what it is called with.
        fix: name of the changed model (``file.py:factory``), tried instead of the built-in fixes on the first finding.
        steps: of each run.
    """
    rules = list(dict.fromkeys(f.rule for f in inspection.findings if f.severity != "info" and not f.cause))
    if fix is not None:
        rules = rules[:1]
    able = [rule for rule in rules if fix is not None or remedies_for(rule, inspection)]
    notes = [
        f"not proved: {rule}, whose fix is a change of the code (--fix FACTORY tries it)"
        for rule in rules
        if rule not in able
    ]
    if not rules:
        notes.append("nothing to prove: no finding of an error or a warning")
    changed = None
    if fix is not None:
        with as_usage("--fix"):
            changed = _maker(fix)
            with torch.random.fork_rng():
                changed()  # a name that cannot be loaded is said before anything is trained
    proofs: list[Proof] = []
    for rule in able:
        with _Display() as display:
            try:
                proofs.append(
                    prove(
                        inspection, rule, model=_maker(loaded.label) if loaded.fresh else loaded.model, batch=batch,
                        fix=changed, settings=TrialSettings(steps=steps), watcher=display,
                    )
                )  # fmt: skip
            except SkipwayError as error:
                notes.append(f"not proved: {rule}: {error.given}; {error.expected}")
    return proofs, notes


def _maker(name: str) -> Callable[[], nn.Module]:
    return lambda: load_model(name).model
