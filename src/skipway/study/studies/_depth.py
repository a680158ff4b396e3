"""How deep the nets of a table are at a budget, and the words for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.study.budgets import by_budget

if TYPE_CHECKING:
    from skipway.study.budgets import Budget

__all__ = ["SCALED", "resnet_depth"]

SCALED: Final[dict[Budget, str]] = {
    "quick": "20 layers on scikit-learn's digits, 150 steps of 64: too shallow and too easy to tell designs apart",
    "standard": "CIFAR-10 at 16 pixels, 600 steps of 128 instead of 64,000, warm-up of 75 steps, rate ÷10 at 60 % and "
    "85 %; the published depth",
}


def resnet_depth(budget: Budget) -> int:
    """Layers of the nets of He et al. 2016, tables 1 and 2."""
    return by_budget(budget, quick=20, standard=110, paper=110)
