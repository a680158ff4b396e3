"""The best design of tables 1 and 2 for longer: how far it gets here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from skipway.spec import DataSpec
from skipway.study.budgets import image_settings
from skipway.study.published import Row, Study, add_study
from skipway.train.recipes import find_recipe

if TYPE_CHECKING:
    from skipway.spec import RunSpec
    from skipway.study.budgets import Budget


def settings(budget: Budget) -> RunSpec:
    """CIFAR-10 at its own 32 pixels."""
    plain = image_settings(budget)
    if budget != "standard":
        return plain
    return replace(
        plain, data=DataSpec(name="cifar10"), recipe=replace(find_recipe("quick"), steps=3000), test_every=500
    )


def rows(budget: Budget) -> tuple[Row, ...]:
    """One net."""
    if budget == "paper":
        return (Row(label="full pre-activation", model="resnet110@preact", published=6.37),)
    return (Row(label="full pre-activation", model="resnet56@preact"),)


add_study(
    Study(
        id="long-run",
        title="The best design for longer",
        source="He et al. 2016, arXiv 1603.05027, table 2 (e)",
        question="what error does full pre-activation reach?",
        rows=rows,
        settings=settings,
        seeds=lambda _: 1,
        published="test error %, CIFAR-10, ResNet-110, median of 5 runs",
        scaled={
            "quick": "56 layers on scikit-learn's digits, 150 steps of 64",
            "standard": "56 layers, CIFAR-10 at 32 pixels, 3,000 steps of 128, one-cycle rate, one seed",
        },
    )
)
