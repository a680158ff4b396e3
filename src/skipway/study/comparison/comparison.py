"""The result of `skipway.compare`, read from its folder. Reading it needs no torch."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from skipway.report.shown import Shown
from skipway.study.comparison.folder import ComparisonFolder
from skipway.study.effects import Effect, paired_effect
from skipway.study.summary import Summary, error_step, final_error
from skipway.train.folder import there
from skipway.train.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from skipway.parts import Part, Table
    from skipway.study.jobs.plan import ComparisonPlan

__all__ = ["SCHEMA_VERSION", "Comparison", "load_comparison"]

SCHEMA_VERSION: Final = "1.0"
_SCHEMA: Final = f"skipway.comparison/{SCHEMA_VERSION}"


class Comparison(Shown):
    """What is known of designs that were trained under one budget.

    Args:
        plan: what was asked for.
        runs: by model and seed, those that have begun.
        speed: of each model, measured alone.
        path: of the folder.
    """

    def __init__(
        self,
        plan: ComparisonPlan,
        runs: Mapping[str, Mapping[int, Run]],
        *,
        speed: Mapping[str, Mapping[str, Any]],
        path: Path,
    ) -> None:
        self.plan, self.runs, self.speed, self.path = plan, runs, speed, path

    @property
    def models(self) -> tuple[str, ...]:
        """Names; the first is the reference."""
        return self.plan.models

    @property
    def missing(self) -> list[tuple[str, int]]:
        """Model and seed of the runs that are not over."""
        return [
            (model, seed)
            for model, seed in self.plan.pairs()
            if (run := self.runs.get(model, {}).get(seed)) is None or not run.folder.finished
        ]

    @property
    def complete(self) -> bool:
        """Whether all runs are over."""
        return not self.missing

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Each design in numbers."""
        return {
            model: Summary.of(
                model,
                self.runs.get(model, {}),
                speed=self.speed.get(model, {}),
                effect=None if model == self.plan.reference else self.effect(model),
            )
            for model in self.models
        }

    def effect(self, model: str, reference: str | None = None) -> Effect | None:
        """Difference of the test error of a model from another's, in points, paired by seed.

        Args:
            model: below 0 it errs less.
            reference: by default the first of the comparison.
        """
        names = (reference or self.plan.reference, model)
        one, other = (self._errors(name) for name in names)
        runs = (self.runs[name][seed] for name, errors in zip(names, (one, other), strict=True) for seed in errors)
        return paired_effect(one, other, step=error_step(run.environment for run in runs))

    def _errors(self, model: str) -> dict[int, float]:
        over = {seed: run.result for seed, run in self.runs.get(model, {}).items() if run.folder.finished}
        return {seed: error for seed, result in over.items() if (error := final_error(result)) is not None}

    def table(self) -> Table:
        """The comparison in one table, a row for each design."""
        from skipway.study.comparison.tables import whole_table

        return whole_table(self)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON-ready values; `schema` names the version of this layout."""
        from skipway.study.comparison.answer import answer

        plan = self.plan.to_dict()
        return {
            "schema": _SCHEMA,
            "path": str(self.path),
            "reference": self.plan.reference,
            "seeds": list(self.plan.seeds),
            "complete": self.complete,
            "missing": [{"model": m, "seed": s} for m, s in self.missing],
            "settings": plan["settings"],
            "answer": [text.text for text in answer(self)],
            "designs": [summary.to_dict() for summary in self.summaries.values()],
            "runs": [
                {"model": model, "seed": seed, "status": run.status, "folder": str(run.path), "result": run.result}
                for model, runs in self.runs.items()
                for seed, run in runs.items()
            ],
            "speed": {model: dict(facts) for model, facts in self.speed.items()},
        }

    def _parts(self) -> tuple[Part, ...]:
        from skipway.study.comparison.view import comparison_parts

        return comparison_parts(self)

    def _report(self) -> tuple[Part, ...]:
        from skipway.study.comparison.view import comparison_report

        return comparison_report(self)

    def _title(self) -> str:
        return f"skipway compare: {', '.join(self.models)}"


def load_comparison(path: str | Path) -> Comparison:
    """The comparison in a folder, finished or not.

    Raises:
        SkipwayError: no comparison lies there, or one of another version.
    """
    folder = ComparisonFolder(path)
    plan = folder.read_plan()
    runs: dict[str, dict[int, Run]] = {model: {} for model in plan.models}
    for model, seed in plan.pairs():
        if there(folder.run(model, seed).spec_path):
            runs[model][seed] = Run(folder.run(model, seed).path)
    return Comparison(plan, runs, speed=folder.read_speed(), path=folder.path)
