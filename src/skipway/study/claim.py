"""A statement about residual networks as a measurement with a criterion, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from skipway.errors import SkipwayError
from skipway.registry import Registry
from skipway.study.budgets import BUDGETS, Budget, by_budget
from skipway.study.conduct import conduct
from skipway.study.outcome_tables import go_on

if TYPE_CHECKING:
    from skipway.parts import Part
    from skipway.study.jobs.listen import StudyListener
    from skipway.study.outcome import StudyOutcome
    from skipway.study.records.results import Results

__all__ = ["CLAIMS", "VERDICTS", "Bench", "Claim", "Judgement", "Verdict", "claim"]

Verdict = Literal["holds", "holds only if", "does not hold", "documentary", "not measured"]
VERDICTS: Final[tuple[Verdict, ...]] = ("holds", "holds only if", "does not hold", "documentary", "not measured")
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What was found.

    Args:
        verdict: by the criterion, never by expectation.
        figure: the measured value, in one line that stands by itself.
        condition: behind "holds only if"; empty for other verdicts.
        words: what else a reader should know: the printed or published value beside ours, what does not fit.
        numbers: the measured values by name, JSON-ready.
        parts: the figure behind the verdict, for reports that draw.
    """

    verdict: Verdict
    figure: str
    condition: str = ""
    words: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a measurement has at hand.

    Args:
        budget: that may be spent.
        results: what is on record.
        out: folder of run folders.
        root: folder of the data; None for the usual places.
        workers: runs at a time; None for one for each GPU or core.
        listener: is told how trainings go on.
    """

    budget: Budget
    results: Results
    out: Path
    root: str | None = None
    workers: int | None = None
    listener: StudyListener | None = None

    def pick(self, *, quick: _Kind, standard: _Kind, paper: _Kind | None = None) -> _Kind:
        """What stands for the budget; without `paper` the standard's."""
        return by_budget(self.budget, quick=quick, standard=standard, paper=standard if paper is None else paper)

    def study(self, name: str, *, seeds: int | None = None) -> StudyOutcome:
        """A study at this budget, carried out as far as it is not on record.

        Args:
            name: id of the study.
            seeds: runs of each row; by default the budget's.

        Raises:
            KeyboardInterrupt: somebody asked to stop; nothing can be judged by a part of the runs.
            SkipwayError: a run or a measurement failed by an error.
        """
        outcome = conduct(
            name, self.budget, results=self.results, out=self.out, root=self.root, seeds=seeds, workers=self.workers,
            listener=self.listener,
        )  # fmt: skip
        if outcome.interrupted:
            raise KeyboardInterrupt
        if not outcome.complete:
            why = outcome.troubles[0] if outcome.troubles else f"{outcome.missing} runs are not over"
            raise SkipwayError(f"study {name} is not complete: {why}", "all of its runs", go_on(outcome))
        return outcome


Check = Callable[[Bench], Judgement]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the source documents.

    Args:
        id: of the registry.
        source: document and place, with the paper it goes back to.
        statement: as the document has it.
        measurement: what is measured, in a sentence.
        criterion: what decides, set down before the measurement.
        least: the smallest budget at which it is decided.
        otherwise: why it is not decided below that.
        check: measures and judges.
        file: where the claim is written down.
    """

    id: str
    source: str
    statement: str
    measurement: str
    criterion: str
    least: Budget = "quick"
    otherwise: str = ""
    check: Check
    file: Path

    def decided_at(self, budget: Budget) -> bool:
        """Whether a budget suffices."""
        return BUDGETS.index(budget) >= BUDGETS.index(self.least)


CLAIMS: Final[Registry[Claim]] = Registry("claim", "skipway.study.claims")


def claim(
    id: str,  # noqa: A002  # a claim has an id
    *,
    source: str,
    statement: str,
    measurement: str,
    criterion: str,
    least: Budget = "quick",
    otherwise: str = "",
) -> Callable[[Check], Check]:
    """Register a function as the measurement of a claim."""

    def register(check: Check) -> Check:
        CLAIMS.add(
            id,
            Claim(
                id=id, source=source, statement=statement, measurement=measurement, criterion=criterion, least=least,
                otherwise=otherwise, check=check, file=Path(check.__code__.co_filename),
            ),
        )  # fmt: skip
        return check

    return register
