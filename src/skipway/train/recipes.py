"""Recipes as data: what is published, and quick ones for small budgets."""

from __future__ import annotations

from typing import Final

from skipway.errors import UnknownNameError
from skipway.spec import OptimizerSpec, RecipeSpec, ScheduleSpec

__all__ = ["RECIPES", "default_recipe", "find_recipe"]

_EPOCH_IMAGENET: Final = 1_281_167 / 256

RECIPES: Final[dict[str, RecipeSpec]] = {
    recipe.name: recipe
    for recipe in (
        RecipeSpec(
            name="he2016-cifar",
            optimizer=OptimizerSpec(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
            # 400 of 64,000 iterations at 0.01, then 0.1, ÷10 at 32,000 and 48,000.
            schedule=ScheduleSpec(
                name="steps", warmup=400 / 64_000, warmup_from=0.1, warmup_shape="constant", milestones=(0.5, 0.75)
            ),
            steps=64_000,
            batch_size=128,
            normalize="pixel",
            source="He et al. 2016, arXiv 1603.05027, appendix; mean image: arXiv 1512.03385",
        ),
        RecipeSpec(
            name="he2016-short",
            optimizer=OptimizerSpec(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
            # One step in eight warms up: 400 of 64,000 would be four steps of 600.
            schedule=ScheduleSpec(
                name="steps", warmup=0.125, warmup_from=0.1, warmup_shape="constant", milestones=(0.6, 0.85)
            ),
            steps=600,
            batch_size=128,
            source="he2016-cifar squeezed into minutes: a longer warm-up, later milestones",
        ),
        RecipeSpec(
            name="he2016-imagenet",
            optimizer=OptimizerSpec(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4),
            schedule=ScheduleSpec(name="steps", milestones=(30 / 90, 60 / 90)),
            steps=round(90 * _EPOCH_IMAGENET),
            batch_size=256,
            source="He et al. 2016, arXiv 1603.05027, section 5: 0.1 without warm-up, ÷10 after 30 and 60 epochs",
        ),
        RecipeSpec(
            name="quick",
            optimizer=OptimizerSpec(name="sgd", lr=0.4, momentum=0.9, nesterov=True, weight_decay=5e-4),
            schedule=ScheduleSpec(name="one-cycle", warmup=0.2, warmup_from=0.1),
            steps=1_000,
            batch_size=128,
            source="linear up and down, for minutes on a processor",
        ),
        RecipeSpec(
            name="gpt-small",
            optimizer=OptimizerSpec(name="adamw", lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, decay="matrices"),
            schedule=ScheduleSpec(name="cosine", warmup=0.05, final=0.1),
            steps=1_000,
            batch_size=32,
            clip_norm=1.0,
            source="Brown et al. 2020, arXiv 2005.14165, appendix B, scaled to small nets",
        ),
    )
}


def find_recipe(name: str) -> RecipeSpec:
    """The recipe called `name`.

    Raises:
        UnknownNameError: no such recipe; suggests the nearest.
    """
    if name not in RECIPES:
        raise UnknownNameError("recipe", name, RECIPES)
    return RECIPES[name]


def default_recipe(task: str) -> RecipeSpec:
    """``quick`` for images, ``gpt-small`` for token tasks."""
    return RECIPES["quick" if task == "image" else "gpt-small"]
