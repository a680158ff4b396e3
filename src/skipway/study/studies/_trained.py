"""Nets of 56 layers, trained long enough to be worth cutting into: those of lesions and of path lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from skipway.study.budgets import image_settings
from skipway.train.recipes import find_recipe

if TYPE_CHECKING:
    from skipway.spec import RunSpec
    from skipway.study.budgets import Budget

__all__ = ["SCALED", "trained_settings"]

SCALED: Final[dict[Budget, str]] = {
    "quick": "56 layers on scikit-learn's digits, 150 steps of 64",
    "standard": "56 layers instead of 110, CIFAR-10 at 16 pixels, 1,200 steps of 128, one-cycle rate",
}


def trained_settings(budget: Budget) -> RunSpec:
    """As for the tables, but a recipe that gets further in few steps."""
    settings = image_settings(budget)
    return replace(settings, recipe=replace(find_recipe("quick"), steps=1200)) if budget == "standard" else settings
