"""`skipway claims`: examine statements at a budget, keep each verdict, say what came out."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skipway.cores import cores
from skipway.errors import SkipwayError
from skipway.report.shown import Shown
from skipway.study.claim import CLAIMS, Bench, Claim, Judgement
from skipway.study.records.provenance import code_commit, keyword_commit
from skipway.study.records.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skipway.parts import Part
    from skipway.study.budgets import Budget
    from skipway.study.jobs.listen import StudyListener

__all__ = ["Examined", "Findings", "examine"]

_SCHEMA: Final = "skipway.claim/1.0"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A claim and what was found.

    Args:
        claim: the statement and its criterion.
        judgement: what was found.
        seconds: that it took; of trainings that were on record nothing counts.
        trouble: what went wrong where nothing could be found; empty otherwise.
    """

    claim: Claim
    judgement: Judgement
    seconds: float
    trouble: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Findings(Shown):
    """All claims that were examined.

    Args:
        budget: that was spent.
        examined: in the order of the registry, or as asked for.
        seconds: in all.
    """

    budget: Budget
    examined: tuple[Examined, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The verdicts as JSON-ready values; `schema` names the version of this layout."""
        from skipway.study.claims_view import findings_dict

        return findings_dict(self)

    def _parts(self) -> tuple[Part, ...]:
        from skipway.study.claims_view import findings_parts

        return findings_parts(self)

    def _report(self) -> tuple[Part, ...]:
        from skipway.study.claims_view import findings_report

        return findings_report(self)

    def _title(self) -> str:
        return f"skipway claims, budget {self.budget}"


def examine(
    ids: Sequence[str] = (),
    budget: Budget = "quick",
    *,
    results: Results | None = None,
    out: str | Path = "runs/studies",
    root: str | None = None,
    workers: int | None = None,
    listener: StudyListener | None = None,
    told: Callable[[Examined], None] | None = None,
) -> Findings:
    """Measure statements, and judge each by its criterion.

    Each verdict is written as it is found. A claim that cannot be decided at the budget says why. What is on record
    stays where a measurement fails by an error: data that is not there, say.

    Args:
        ids: of claims; empty for all.
        budget: ``"quick"``, ``"standard"`` or ``"paper"``.
        results: where verdicts and runs are kept; by default in ``results``.
        out: folder of run folders.
        root: folder of the data; None for the usual places.
        workers: runs at a time; by default one for each GPU or core.
        listener: is told how trainings go on.
        told: is called with each claim as it is judged.

    Raises:
        UnknownNameError: an unknown claim, before anything is measured.
        KeyboardInterrupt: somebody asked to stop; the verdicts so far are kept, and the trainings go on the next time.
    """
    claims = [CLAIMS[name] for name in (ids or list(CLAIMS))]
    results = results or Results()
    bench = Bench(budget=budget, results=results, out=Path(out), root=root, workers=workers, listener=listener)
    started, found = time.perf_counter(), []
    for claim in claims:
        examined = _examined(claim, bench)
        if not examined.trouble:
            results.write_claim(budget, claim.id, _kept(examined, budget))
        found.append(examined)
        if told is not None:
            told(examined)
    return Findings(budget=budget, examined=tuple(found), seconds=time.perf_counter() - started)


def _examined(claim: Claim, bench: Bench) -> Examined:
    if not claim.decided_at(bench.budget):
        why = claim.otherwise or f"it takes budget {claim.least}"
        return Examined(claim=claim, judgement=Judgement(verdict="not measured", figure=why), seconds=0.0)
    started = time.perf_counter()
    try:
        judgement, trouble = claim.check(bench), ""
    except SkipwayError as error:  # data that is not there, say: the other claims can still be examined
        judgement, trouble = (
            Judgement(verdict="not measured", figure=f"could not be measured: {error.given}"),
            str(error),
        )
    return Examined(claim=claim, judgement=judgement, seconds=time.perf_counter() - started, trouble=trouble)


def _kept(examined: Examined, budget: Budget) -> dict[str, Any]:
    import torch

    from skipway.study.claims_view import examined_dict
    from skipway.train.hardware import processor_name

    return {
        "schema": _SCHEMA, "budget": budget, **examined_dict(examined),
        "criterion_commit": keyword_commit(examined.claim.file, "criterion"), "code_commit": code_commit(),
        "torch": metadata.version("torch"), "python": platform.python_version(),
        "processor": processor_name(), "cores": cores(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }  # fmt: skip
