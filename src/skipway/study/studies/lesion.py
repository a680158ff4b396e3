"""Veit et al. 2016, figure 3: delete single units of trained nets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skipway.study.published import Row, Study, add_study
from skipway.study.studies._trained import SCALED, trained_settings

if TYPE_CHECKING:
    from skipway.study.budgets import Budget
    from skipway.train.run import Run

_SAMPLES: Final = 1000
_BATCH: Final = 250


def rows(budget: Budget) -> tuple[Row, ...]:
    """A residual net both ways, and its plain twins."""
    deep = 110 if budget == "paper" else 56
    return (
        Row(label="pre-activation", model=f"resnet{deep}@preact"),
        Row(label="residual", model=f"resnet{deep}"),
        Row(label="plain", model=f"plain{deep}"),
        Row(label="plain, 20 layers", model="plain20"),
    )


def measure(run: Run) -> dict[str, Any]:
    """Test error without each unit, of a plain net without each block that keeps its shape, in points."""
    import statistics

    import torch

    from skipway.data import open_data
    from skipway.units.lesion import lesion

    data = open_data(run.spec.data, device=torch.device("cpu"))
    model = run.model()
    plain = run.spec.model.startswith("plain")
    count = -(-min(_SAMPLES, data.info.test_size) // _BATCH)
    found = lesion(
        model, metric="error", data=data.test(batch_size=_BATCH), batches=count, blocks="auto" if plain else None
    )
    deltas = [trial.change for trial in found.runs if trial.kind == "deleted"]
    return {
        "error_whole": found.baseline,
        "median_delta": statistics.median(deltas),
        "largest_delta": max(deltas),
        "units": len(deltas),
        "units_within_3_points": sum(delta <= 3 for delta in deltas),
        "by_unit": deltas,
    }


add_study(
    Study(
        id="lesion",
        title="Delete one unit of a trained net",
        source="Veit et al. 2016, arXiv 1605.06431, section 4.1, figure 3",
        question="does a residual net stand the loss of any one unit, and a plain net not?",
        rows=rows,
        settings=trained_settings,
        measure=measure,
        measures="change of the test error in points when one unit is deleted, 1,000 test images",
        scaled=SCALED,
    )
)
