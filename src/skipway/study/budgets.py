"""How much is spent on a study or a claim: minutes, hours, or what was published."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, TypeVar

from skipway.errors import UnknownNameError
from skipway.spec import DataSpec, RunSpec
from skipway.train.recipes import find_recipe

__all__ = ["BUDGETS", "Budget", "as_budget", "by_budget", "image_settings", "seeds_of"]

Budget = Literal["quick", "standard", "paper"]
BUDGETS: Final[tuple[Budget, ...]] = ("quick", "standard", "paper")
_SEEDS: Final[dict[Budget, int]] = {"quick": 2, "standard": 3, "paper": 5}
_Kind = TypeVar("_Kind")


def as_budget(word: str) -> Budget:
    """A word as a budget.

    Raises:
        UnknownNameError: there is no such budget.
    """
    for budget in BUDGETS:
        if budget == word:
            return budget
    raise UnknownNameError("budget", word, BUDGETS)


def by_budget(budget: Budget, *, quick: _Kind, standard: _Kind, paper: _Kind) -> _Kind:
    """What stands for a budget."""
    return {"quick": quick, "standard": standard, "paper": paper}[budget]


def seeds_of(budget: Budget) -> int:
    """Runs of each row."""
    return _SEEDS[budget]


def image_settings(budget: Budget) -> RunSpec:
    """How a convolutional net is trained.

    ``quick``: scikit-learn's digits, 150 steps of 64. ``standard``: CIFAR-10 at 16 pixels, 600 steps of 128 by the
    published recipe squeezed together. ``paper``: CIFAR-10 as He et al. 2016 have it (arXiv 1603.05027, appendix). In
    float32, so that rows that were trained on different machines can stand in one table; ``paper`` as fast as the
    hardware can.
    """
    name = by_budget(budget, quick="quick", standard="he2016-short", paper="he2016-cifar")
    recipe = find_recipe(name)
    data = by_budget(
        budget,
        quick=DataSpec(name="digits"),
        standard=DataSpec(name="cifar10", image_size=16),
        paper=DataSpec(name="cifar10", normalize=recipe.normalize),
    )
    if budget == "quick":
        recipe = replace(recipe, steps=150, batch_size=64)
    precision = by_budget(budget, quick="32-true", standard="32-true", paper="auto")
    return RunSpec(model="", data=data, recipe=recipe, precision=precision, inspect=False)
