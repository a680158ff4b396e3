"""The folder of a comparison: what lies where.

DIR/comparison.json        what was asked for
DIR/MODEL/seed-K/          one run folder for each run
DIR/logs/MODEL-seed-K.txt  what the process of that run printed
DIR/speed.json             samples per second of each model, measured alone
DIR/report.html            the report
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError
from skipway.report.files import write_json
from skipway.study.jobs.plan import ComparisonPlan
from skipway.train.folder import RunFolder, read_json, there
from skipway.train.plan import safe_name

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["ComparisonFolder"]


class ComparisonFolder:
    """Paths and files of one comparison.

    Args:
        path: the folder; need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.plan_path = self.path / "comparison.json"
        self.speed_path = self.path / "speed.json"
        self.report_path = self.path / "report.html"

    def run(self, model: str, seed: int) -> RunFolder:
        """The folder of one run."""
        return RunFolder(self.path / safe_name(model) / f"seed-{seed}")

    def log_path(self, model: str, seed: int) -> Path:
        """What the process of one run printed."""
        return self.path / "logs" / f"{safe_name(model)}-seed-{seed}.txt"

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder for this process.

        Raises:
            SkipwayError: another process holds it.
        """
        return RunFolder(self.path).locked()

    def read_plan(self) -> ComparisonPlan:
        """What was asked for.

        Raises:
            SkipwayError: no comparison lies there, or one of another version.
        """
        if not there(self.plan_path):
            raise SkipwayError(
                f"no comparison in {self.path}", "a folder with comparison.json, as skipway compare writes it"
            )
        return ComparisonPlan.from_dict(read_json(self.plan_path))

    def check(self, plan: ComparisonPlan) -> None:
        """See that nothing there is in the way of `plan`.

        Raises:
            SkipwayError: the folder holds something else, or runs of another spec.
        """
        if there(self.plan_path):
            differ = self.read_plan().differences(plan)
            if differ:
                raise SkipwayError(
                    f"{self.path} holds a comparison with other settings: {'; '.join(differ)}",
                    "the same settings, to add models or seeds to it", "another --out",
                )  # fmt: skip
        elif self.path.is_dir() and any(not p.name.startswith(".") for p in self.path.iterdir()):
            what = "a run" if (self.path / "spec.json").exists() else "no comparison"
            raise SkipwayError(
                f"{self.path} is not empty and holds {what}", "a comparison, or an empty or new folder",
                "another --out",
            )  # fmt: skip
        for model, seed in plan.pairs():
            run = self.run(model, seed)
            if there(run.spec_path) and run.read_spec() != plan.spec(model, seed):
                raise SkipwayError(
                    f"{run.path} holds a run of another spec", f"{model} with seed {seed} and the settings asked for",
                    "another --out, or move that folder away",
                )  # fmt: skip

    def write_plan(self, plan: ComparisonPlan) -> None:
        """Write ``comparison.json``, whole or not at all."""
        write_json(self.plan_path, plan.to_dict())

    def read_speed(self) -> dict[str, Any]:
        """What was measured alone, by model; empty before.

        Raises:
            SkipwayError: the file holds something else.
        """
        speed = read_json(self.speed_path) if self.speed_path.exists() else {}
        for model, facts in speed.items():
            if not isinstance(facts, dict):
                raise SkipwayError(f"{self.speed_path}: {model} {facts!r}", "the file as it was written")
        return speed

    def write_speed(self, speed: dict[str, Any]) -> None:
        """Write ``speed.json``."""
        write_json(self.speed_path, speed)
