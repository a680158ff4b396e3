"""A plan as the command line that asks for it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from skipway.spec import DataSpec, RunSpec
from skipway.train.recipes import RECIPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.study.jobs.plan import ComparisonPlan

__all__ = ["command_of"]


def command_of(plan: ComparisonPlan) -> str:
    """``skipway compare …`` with what differs from the defaults; for seeds with gaps several, which add up."""
    return " && ".join(_command(plan, seeds) for seeds in _without_gaps(plan.seeds))


def _without_gaps(seeds: tuple[int, ...]) -> list[list[int]]:
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return parts


def _command(plan: ComparisonPlan, seeds: list[int]) -> str:
    settings, recipe = plan.settings, plan.settings.recipe
    words = ["skipway", "compare", *plan.models, "--data", settings.data.name, "--recipe", recipe.name]
    words += ["--steps", str(recipe.steps), "--batch", str(recipe.batch_size), "--seeds", str(len(seeds))]
    if seeds[0]:
        words += ["--base-seed", str(seeds[0])]
    for name, value in (*_recipe_options(settings), *_data_options(settings.data), *_run_options(settings)):
        words += [f"--{name.replace('_', '-')}", str(value)]
    if settings.channels_last is not None:
        words.append("--channels-last" if settings.channels_last else "--channels-first")
    if settings.residual_in_fp32 is not None:
        words.append("--residual-in-fp32" if settings.residual_in_fp32 else "--no-residual-in-fp32")
    return shlex.join([*words, *["--download"] * settings.data.download, *["--no-inspect"] * (not settings.inspect)])


def _recipe_options(settings: RunSpec) -> Iterator[tuple[str, object]]:
    recipe = settings.recipe
    known = RECIPES.get(recipe.name)
    if known is not None:
        for name in ("lr", "weight_decay"):
            if getattr(recipe.optimizer, name) != getattr(known.optimizer, name):
                yield name, getattr(recipe.optimizer, name)
    if settings.data.normalize != recipe.normalize:
        yield "normalize", settings.data.normalize


def _data_options(data: DataSpec) -> Iterator[tuple[str, object]]:
    default = DataSpec()
    for name in ("root", "image_size", "train_size", "test_size", "augment", "context"):
        if getattr(data, name) != getattr(default, name):
            yield name, getattr(data, name)


def _run_options(settings: RunSpec) -> Iterator[tuple[str, object]]:
    default = RunSpec(model="")
    for name in ("precision", "memory", "compile", "accelerator", "threads", "checkpoint_every", "log_every"):
        if getattr(settings, name) != getattr(default, name):
            yield name, getattr(settings, name)
    # Not typed, it is a tenth of the steps, not the 0 of a single run.
    yield "test_every", settings.test_every
