"""Post- against pre-norm at 6 and 60 layers, with and without warm-up (arXiv 2002.04745)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.spec import DataSpec, OptimizerSpec, RecipeSpec, RunSpec, ScheduleSpec
from skipway.study.budgets import by_budget
from skipway.study.published import Row, Study, add_study

if TYPE_CHECKING:
    from skipway.study.budgets import Budget

_NETS: Final = "skipway.study.deep_transformer"
# A fifth of the steps, from a hundredth of the rate.
_WARM_UP: Final = 0.2
_PLACEMENTS: Final = (("post-norm", "post_norm"), ("pre-norm", "pre_norm"))


def settings(budget: Budget) -> RunSpec:
    """Adam at a constant 1e-3 (AdamW without decay), in float32."""
    return _settings(budget, warm_up=0.0)


def _settings(budget: Budget, *, warm_up: float) -> RunSpec:
    steps = by_budget(budget, quick=150, standard=600, paper=5000)
    schedule = ScheduleSpec(name="constant", warmup=warm_up, warmup_from=0.01)
    recipe = RecipeSpec(
        name="adam-warm-up" if warm_up else "adam", steps=steps, batch_size=64, schedule=schedule,
        optimizer=OptimizerSpec(name="adamw", lr=1e-3, weight_decay=0.0),
        source="a constant rate, as PyTorch's examples have it",
    )  # fmt: skip
    return RunSpec(model="", data=DataSpec(name="reverse"), recipe=recipe, precision="32-true", inspect=False)


def rows(budget: Budget) -> tuple[Row, ...]:
    """Both placements with and without warm-up, pre-norm with zero-initialised ends too, and shallow twins."""
    found = [
        Row(
            label=f"{name}, {how}", model=f"{_NETS}:{placement}_60", group="60 layers",
            settings=_settings(budget, warm_up=warm_up),
        )
        for name, placement in _PLACEMENTS
        for how, warm_up in (("no warm-up", 0.0), ("warm-up", _WARM_UP))
    ]  # fmt: skip
    zero = Row(label="pre-norm, zero-initialised ends", model=f"{_NETS}:pre_norm_zero_60", group="60 layers")
    shallow = [
        Row(label=f"{name}, no warm-up, 6 layers", model=f"{_NETS}:{placement}_6", group="6 layers")
        for name, placement in _PLACEMENTS
    ]
    return (*found, zero, *shallow)


add_study(
    Study(
        id="pre-post-norm",
        title="Post- against pre-norm, with and without warm-up",
        source="Xiong et al. 2020, arXiv 2002.04745; nothing is published for this task",
        question="does a deep post-norm transformer train at all, and does warm-up mend it?",
        rows=rows,
        settings=settings,
        seeds=lambda budget: by_budget(budget, quick=1, standard=5, paper=5),
        scaled={
            "quick": "eight tokens in reverse order, 150 steps of 64",
            "standard": "eight tokens in reverse order, 600 steps of 64",
            "paper": "eight tokens in reverse order, 5,000 steps of 64",
        },
    )
)
