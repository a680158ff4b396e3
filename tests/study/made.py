"""Run folders written by hand, so that a report's numbers are known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from skipway.spec import DataSpec, RecipeSpec, RunSpec
from skipway.study.comparison.comparison import Comparison, load_comparison
from skipway.study.comparison.folder import ComparisonFolder
from skipway.study.jobs.listen import StudyListener
from skipway.study.jobs.plan import ComparisonPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from skipway.study.jobs.listen import RunState

ENVIRONMENT: dict[str, Any] = {
    "torch": "2.9.0", "torchvision": "0.24.0", "numpy": "2.3.0", "lightning-fabric": "2.6.0", "skipway": "0.1.0",
    "python": "3.12.0", "platform": "Linux", "processor": "A Processor", "cores": 2, "threads": 1, "device": "cpu",
    "precision": "32-true", "channels_last": True, "devices": 1, "strategy": "auto",
    "data": {
        "name": "digits", "task": "image", "num_classes": 10, "input_shape": [1, 8, 8], "input_dtype": "float32",
        "classes": list("0123456789"), "train_size": 1437, "test_size": 360, "note": "digits", "fingerprint": "0",
    },
}  # fmt: skip
SETTINGS = RunSpec(model="", data=DataSpec(), recipe=RecipeSpec(name="quick", steps=20, batch_size=64), threads=1)

# Of `skipway.compare`, so that a run takes a second.
TINY: dict[str, Any] = {"steps": 8, "batch_size": 16, "threads": 1}


class Heard(StudyListener):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.states: Sequence[RunState] = ()
        self.stops = 0

    def noted(self, text: str) -> None:
        self.notes.append(text)

    def moved(self, states: Sequence[RunState]) -> None:
        self.states = states

    def stopping(self) -> None:
        self.stops += 1


def result(error: float | None, loss: float | str | None, *, status: str = "finished") -> dict[str, Any]:
    more = {"where": "layer1.0", "what": "aten.mul is the first not finite", "loss": "nan", "checkpoint_step": None}
    return {
        "status": status, "steps": 20, "model": "", "seed": 0, "train_loss": loss, "test_loss": None,
        "test_error": error, "seconds": 2.0, "samples_per_sec": 640.0, "parameters": 75002,
        **(more if status == "diverged" else {}),
    }  # fmt: skip


def comparison(path: Path, results: Mapping[str, Mapping[int, dict[str, Any] | None]]) -> Comparison:
    """A comparison whose runs have these results; None is a run that is not over."""
    seeds = sorted({seed for by_seed in results.values() for seed in by_seed})
    plan = ComparisonPlan(models=tuple(results), seeds=tuple(seeds), settings=SETTINGS)
    folder = ComparisonFolder(path)
    folder.write_plan(plan)
    for model, by_seed in results.items():
        for seed, found in by_seed.items():
            write_run(folder.run(model, seed).path, plan.spec(model, seed), found)
    return load_comparison(path)


def write_run(path: Path, spec: RunSpec, found: dict[str, Any] | None) -> None:
    path.mkdir(parents=True)
    (path / "spec.json").write_text(json.dumps(spec.to_dict()))
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    lines = [{"step": 10, "loss": 2.0 + spec.seed}, {"step": 20, "loss": 1.0 + spec.seed}]
    if found is not None:
        (path / "result.json").write_text(json.dumps(found))
        lines.append({"step": 20, "test_error": found["test_error"]})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
