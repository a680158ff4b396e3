"""What is known of one design: its runs in a few numbers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from skipway.report.profile import stream_gradients
from skipway.study.effects import Effect, Spread, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from skipway.diagnostics.inspection import Inspection
    from skipway.train.run import Run

__all__ = [
    "Summary", "as_number", "came_to_nothing", "effect_dict", "error_step", "final_error", "final_loss", "spread_dict",
    "training_failed",
]  # fmt: skip

# A net that has learnt nothing spreads its bets over all classes: a loss of ln(classes), in nats; this near counts.
_GUESSING: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One design.

    Args:
        model: its name.
        n: runs that are over.
        test_error: over the seeds that did not diverge, in percent.
        train_loss: over the same seeds, each the mean of the last steps, in nats.
        failed: seeds whose training failed: it diverged, or ended with the loss of guessing.
        parameters: of the net.
        flops: of one sample forward (a multiply-add counts 2); None where the net was not inspected.
        samples_per_sec: of training, measured alone; None where it was not.
        seconds: of training, the mean over the seeds, beside other runs.
        gradient_start, gradient_end: gradient at the first unit over that at the last, of the first seed, before and
            after training; dimensionless.
        effect: difference of the test error from the reference's, in points; None for the reference.
    """

    model: str
    n: int
    test_error: Spread | None
    train_loss: Spread | None
    failed: tuple[int, ...]
    parameters: int | None
    flops: float | None
    samples_per_sec: float | None
    seconds: float | None
    gradient_start: float | None
    gradient_end: float | None
    effect: Effect | None

    @classmethod
    def of(cls, model: str, runs: Mapping[int, Run], *, speed: Mapping[str, Any], effect: Effect | None) -> Summary:
        """Sum up the runs of a design.

        Args:
            model: its name.
            runs: by seed; those that are not over do not count.
            speed: what was measured alone; empty if nothing was.
            effect: against the reference.
        """
        over = {seed: run for seed, run in runs.items() if run.folder.finished}
        results = {seed: run.result for seed, run in over.items()}
        seconds = spread(_known(as_number(r.get("seconds")) for r in results.values()))
        start, end = (_first_inspection(over, when) for when in ("start", "end"))
        return cls(
            model=model,
            n=len(over),
            test_error=spread(_known(final_error(r) for r in results.values())),
            train_loss=spread(_known(final_loss(r) for r in results.values())),
            failed=tuple(seed for seed, run in over.items() if training_failed(run)),
            parameters=next((r["parameters"] for r in results.values()), None),
            flops=_flops_per_sample(start or end),
            samples_per_sec=speed.get("samples_per_sec"),
            seconds=None if seconds is None else seconds.mean,
            gradient_start=_first_over_last(start),
            gradient_end=_first_over_last(end),
            effect=effect,
        )

    def to_dict(self) -> dict[str, Any]:
        """The summary as JSON-ready values."""
        return {
            "model": self.model,
            "runs": self.n,
            "test_error_percent": spread_dict(self.test_error),
            "train_loss_nats": spread_dict(self.train_loss),
            "failed_seeds": list(self.failed),
            "parameters": self.parameters,
            "flops_per_sample": self.flops,
            "samples_per_sec": self.samples_per_sec,
            "seconds": self.seconds,
            "gradient_first_over_last": {"start": self.gradient_start, "end": self.gradient_end},
            "effect_on_test_error": None if self.effect is None else effect_dict(self.effect),
        }


def training_failed(run: Run) -> bool:
    """Whether the training of a run that is over came to nothing."""
    return came_to_nothing(run.result, run.environment)


def came_to_nothing(result: Mapping[str, Any], environment: Mapping[str, Any]) -> bool:
    """Whether a loss is not finite at the end, or within 0.05 of ln(classes), that of guessing.

    Args:
        result: of a run that is over.
        environment: of the run, with its data.
    """
    loss = final_loss(result)
    if loss is None or not math.isfinite(loss):
        return True
    return loss > math.log(environment["data"]["num_classes"]) - _GUESSING


def final_error(result: Mapping[str, Any]) -> float | None:
    """Test error of a run, in percent; None where it diverged, whatever was tested on the way there.

    Args:
        result: of a run that is over.
    """
    return None if result["status"] == "diverged" else as_number(result.get("test_error"))


def final_loss(result: Mapping[str, Any]) -> float | None:
    """Training loss of a run, the mean of its last steps in nats; None where it diverged.

    Args:
        result: of a run that is over.
    """
    return None if result["status"] == "diverged" else as_number(result.get("train_loss"))


def error_step(environments: Iterable[Mapping[str, Any]]) -> float:
    """The smallest difference that test errors can have, in points: that of one answer.

        100 / answers        answers = samples of the test set (× tokens of a sample, each of which is answered)

    Of runs with test sets of different sizes it is the largest: it bounds the rounding of a difference from above.

    Args:
        environments: of the runs, with their data; 0 where there are none.
    """
    return max((100 / _answers(environment["data"]) for environment in environments), default=0.0)


def _answers(data: Mapping[str, Any]) -> int:
    """Answers in a test set; images are (C, H, W) with one answer each, samples of T tokens are (T,) with T."""
    shape = data["input_shape"]
    return max(int(data["test_size"]) * (int(shape[0]) if len(shape) == 1 else 1), 1)


def effect_dict(effect: Effect) -> dict[str, Any]:
    """An effect as JSON-ready values."""
    return {
        "pairs": effect.n, "mean": effect.mean, "low": effect.low, "high": effect.high, "shown": effect.shown,
    }  # fmt: skip


def as_number(value: object) -> float | None:
    """A number as a run folder holds it, where what is not finite is a text; None where there is none."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    return float(value) if isinstance(value, int | float) else None


def spread_dict(found: Spread | None) -> dict[str, Any] | None:
    """A spread as JSON-ready values."""
    if found is None:
        return None
    return {"n": found.n, "mean": found.mean, "sd": found.sd, "low": found.low, "high": found.high}


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _first_inspection(runs: Mapping[int, Run], when: str) -> Inspection | None:
    for _, run in sorted(runs.items()):
        seen = run.inspection(when)
        if seen is not None:
            return seen
    return None


def _first_over_last(inspection: Inspection | None) -> float | None:
    """The gradient at the first point of the stream over that at the last; None where it was not measured."""
    known = [] if inspection is None else stream_gradients(inspection)
    return known[0] / known[-1] if len(known) > 1 and known[-1] else None


def _flops_per_sample(inspection: Inspection | None) -> float | None:
    """Forward FLOPs of the inspected batch over its samples, which stand first in its shape."""
    if inspection is None or "flops" not in inspection.totals:
        return None
    shape = re.search(r"\[(\d+)", inspection.batch)
    return inspection.totals["flops"] / int(shape[1]) if shape else None
