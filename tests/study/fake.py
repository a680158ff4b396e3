"""Records, studies and claims made by hand, so that what is said of them is known; nothing here trains."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipway.study.claim import Claim, Judgement
from skipway.study.outcome import RowRuns, StudyOutcome
from skipway.study.published import Row, Study
from skipway.study.records.record import Record, same_anywhere

sys.path.insert(0, str(Path(__file__).parent))
import made

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from skipway.study.claim import Bench, Verdict
    from skipway.study.published import Published

COMMIT = "0123456789"


def record(model: str, seed: int, error: float | None, loss: float | str | None, *, seconds: float = 2.0) -> Record:
    """A run with this test error; without one it diverged."""
    result = made.result(error, loss, status="finished" if error is not None else "diverged") | {"seconds": seconds}
    return Record(
        spec=same_anywhere(replace(made.SETTINGS, model=model, seed=seed)),
        result=result,
        loss=((10, 2.0 + seed), (20, 1.0 + seed)),
        tests=() if error is None else ((20, error),),
        environment=made.ENVIRONMENT,
        commit=COMMIT,
    )


def row(
    label: str,
    model: str,
    published: Published,
    runs: Sequence[tuple[float | None, float | str | None]],
    *,
    group: str = "",
    planned: int | None = None,
    measured: Mapping[int, Mapping[str, Any]] | None = None,
) -> RowRuns:
    """A row with a run for each pair of test error and training loss, from seed 0 on."""
    return RowRuns(
        row=Row(label=label, model=model, published=published, group=group),
        planned=len(runs) if planned is None else planned,
        records={seed: record(model, seed, *run) for seed, run in enumerate(runs)},
        measured=measured or {},
    )


def study(rows: Sequence[Row], **more: Any) -> Study:
    """A study of these rows at any budget."""
    known: dict[str, Any] = {
        "id": "tablet", "title": "Of stone", "source": "He et al., table 0", "question": "which row is best?",
        "rows": lambda _: tuple(rows), "settings": lambda _: made.SETTINGS, "seeds": lambda _: 2,
        "published": "median of 5 runs", "scaled": {"quick": "digits for CIFAR-10"},
    }  # fmt: skip
    return Study(**(known | more))


def outcome(rows: Sequence[RowRuns], **more: Any) -> StudyOutcome:
    """These rows as the whole of a study at budget quick."""
    return StudyOutcome(study=study([r.row for r in rows], **more), budget="quick", rows=tuple(rows))


def claim(name: str, check: Callable[[Bench], Judgement], **more: Any) -> Claim:
    """A claim that is decided at budget quick."""
    known: dict[str, Any] = {
        "id": name, "source": "000, section 1", "statement": f"Of {name} it is said.",
        "measurement": "It is looked at.", "criterion": "Holds if seen.", "check": check, "file": Path(__file__),
    }  # fmt: skip
    return Claim(**(known | more))


def judged(verdict: Verdict, figure: str = "1.5 of 2", **more: Any) -> Callable[[Bench], Judgement]:
    """A check that finds this."""
    return lambda _: Judgement(verdict=verdict, figure=figure, **more)
