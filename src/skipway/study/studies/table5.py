"""He et al. 2016, table 5: ImageNet, 152 and 200 layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from skipway.spec import DataSpec, RunSpec
from skipway.study.budgets import by_budget, image_settings
from skipway.study.published import Row, Study, add_study
from skipway.train.recipes import find_recipe

if TYPE_CHECKING:
    from skipway.study.budgets import Budget


def settings(budget: Budget) -> RunSpec:
    """ImageNet at the published budget; CIFAR-10 at 32 pixels, or digits, below it."""
    plain = image_settings(budget)
    if budget == "paper":
        return replace(plain, data=DataSpec(name="imagenet", image_size=224), recipe=find_recipe("he2016-imagenet"))
    return plain if budget == "quick" else replace(plain, data=replace(plain.data, image_size=32))


def rows(budget: Budget) -> tuple[Row, ...]:
    """152 and 200 layers, stood in for by 34 and 50 of the same family where that cannot be paid for."""
    small, large = by_budget(
        budget, quick=("resnet18", "resnet18"), standard=("resnet34", "resnet50"), paper=("resnet152", "resnet200")
    )
    found = (
        Row(label="ResNet-152", model=small, published=21.3),
        Row(label="pre-activation ResNet-152", model=f"{small}@preact", published=21.1),
        Row(label="ResNet-200", model=large, published=21.8),
        Row(label="pre-activation ResNet-200", model=f"{large}@preact", published=20.7),
    )
    return found[:2] if budget == "quick" else found


add_study(
    Study(
        id="table5",
        title="ImageNet at 152 and 200 layers (table 5)",
        source="He et al. 2016, arXiv 1603.05027, table 5",
        question="does pre-activation help on ImageNet, and the more the deeper?",
        rows=rows,
        settings=settings,
        seeds=lambda budget: by_budget(budget, quick=1, standard=3, paper=1),
        published="top-1 error %, single crop of 320 pixels, one run",
        scaled={
            "quick": "18 layers on scikit-learn's digits, 150 steps of 64",
            "standard": "CIFAR-10 at 32 pixels, 34 layers for 152 and 50 for 200, 600 steps of 128",
            "paper": "tested at the 224 pixels it was trained on, not at 320",
        },
        others={
            "ResNet-152, crop of 224": 23.0,
            "pre-activation ResNet-200, scale and aspect": 20.1,
            "Inception v3": 21.2,
        },
    )
)
