"""From a few words to a whole run spec, and `skipway.fit`."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError
from skipway.spec import DataSpec, RecipeSpec, RunSpec
from skipway.train.recipes import default_recipe, find_recipe

if TYPE_CHECKING:
    from torch import nn

    from skipway.train.listen import Listener
    from skipway.train.run import Run

__all__ = ["default_folder", "fit", "plan_data", "plan_recipe", "safe_name"]

_TOKEN_TASKS = ("text", "reverse")


def plan_recipe(
    recipe: str | RecipeSpec | None,
    data: DataSpec,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
) -> RecipeSpec:
    """A recipe with some of its values replaced.

    Args:
        recipe: a name, a record, or None for what suits the data.
        data: what is trained on.
        steps: optimiser steps; warm-up and milestones are shares of them and scale along.
        batch_size: samples in a step.
        lr: peak learning rate.
        weight_decay: as in `OptimizerSpec`.

    Raises:
        UnknownNameError: no such recipe.
        SkipwayError: something else than a recipe or a data spec.
    """
    if not isinstance(data, DataSpec):
        raise SkipwayError(f"data of type {type(data).__name__}", "a name or a DataSpec")
    if recipe is None:
        recipe = default_recipe("text" if data.name in _TOKEN_TASKS else "image")
    chosen = find_recipe(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(chosen, RecipeSpec):
        raise SkipwayError(f"a recipe of type {type(chosen).__name__}", "a name or a RecipeSpec")
    optimizer = chosen.optimizer
    if lr is not None:
        optimizer = replace(optimizer, lr=lr)
    if weight_decay is not None:
        optimizer = replace(optimizer, weight_decay=weight_decay)
    return replace(
        chosen,
        optimizer=optimizer,
        steps=chosen.steps if steps is None else steps,
        batch_size=chosen.batch_size if batch_size is None else batch_size,
    )


def plan_data(
    data: str | DataSpec, recipe: str | RecipeSpec | None, *, steps: int | None = None, batch_size: int | None = None
) -> tuple[DataSpec, RecipeSpec]:
    """Data and recipe that fit each other: data by name alone are normalised as the recipe was published.

    Args:
        data: a name or a `DataSpec`.
        recipe: as for `plan_recipe`.
        steps: as for `plan_recipe`.
        batch_size: as for `plan_recipe`.

    Raises:
        UnknownNameError: no such recipe.
    """
    wanted = DataSpec(name=data) if isinstance(data, str) else data
    planned = plan_recipe(recipe, wanted, steps=steps, batch_size=batch_size)
    return (replace(wanted, normalize=planned.normalize) if isinstance(data, str) else wanted), planned


def default_folder(spec: RunSpec) -> Path:
    """``runs/MODEL-DATA-sSEED-DIGEST``: the same for the same spec; a new one for every module."""
    words = safe_name(f"{spec.model}-{Path(spec.data.name).name}")
    name = f"{words}-s{spec.seed}-{spec.digest()[:8]}"
    names = itertools.chain([name], (f"{name}-{k}" for k in itertools.count(2)))
    folders = (Path("runs") / one for one in names)
    return next(f for f in folders if not spec.model.startswith("module:") or not f.exists())


def safe_name(words: str) -> str:
    """A model's name, or other words, as the name of a folder."""
    return "".join(c if c.isalnum() or c in "@=.,-_" else "_" for c in words)


def fit(
    model: str | nn.Module | RunSpec,
    data: str | DataSpec = "digits",
    *,
    out: str | Path | None = None,
    recipe: str | RecipeSpec | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    listener: Listener | None = None,
) -> Run:
    """Train a model and keep the run in a folder.

    Args:
        model: a name (``"resnet56@preact"``, ``"tv:resnet18"``, ``"pkg.mod:factory"``), a module, or a whole spec, for
            which the next arguments are not used.
        data: a name or a `DataSpec`.
        out: folder of the run, new or empty; by default a new one under ``runs``.
        recipe: a name or a `RecipeSpec`; by default ``"quick"`` for images, ``"gpt-small"`` for tokens.
        steps: optimiser steps; by default the recipe's.
        batch_size: samples in a step; by default the recipe's.
        seed: of everything that is drawn. A module comes with its weights.
        listener: is told what happens.

    Returns:
        The run: its metrics, result, inspections at the start and the end, and ``.model()``.

    Raises:
        SkipwayError: unknown names, missing data, a model that does not fit them, a folder that holds something.
    """
    from skipway.train.fit import run_spec

    if isinstance(model, RunSpec):
        return run_spec(model, out or default_folder(model), listener=listener)
    wanted, planned = plan_data(data, recipe, steps=steps, batch_size=batch_size)
    named = isinstance(model, str)
    spec = RunSpec(
        model=model if isinstance(model, str) else f"module:{type(model).__name__}",
        data=wanted, recipe=planned, seed=seed,
    )  # fmt: skip
    return run_spec(spec, out or default_folder(spec), module=None if named else _module(model), listener=listener)


def _module(model: Any) -> nn.Module:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise SkipwayError(f"a model of type {type(model).__name__}", "a name, a module or a RunSpec")
    return model
