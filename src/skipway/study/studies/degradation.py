"""He et al. 2015, table 6 and figure 6: depth hurts plain nets, in training already, and not residual ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.published import Row, Study, add_study
from skipway.study.studies._depth import SCALED

if TYPE_CHECKING:
    from skipway.study.budgets import Budget


def rows(budget: Budget) -> tuple[Row, ...]:
    """20 against 56 layers: plain, residual, and residual by pre-activation."""
    del budget  # the same nets at each
    return (
        Row(label="plain, 20 layers", model="plain20"),
        Row(label="plain, 56 layers", model="plain56"),
        Row(label="residual, 20 layers", model="resnet20", published=8.75),
        Row(label="residual, 56 layers", model="resnet56", published=6.97),
        Row(label="pre-activation, 20 layers", model="resnet20@preact"),
        Row(label="pre-activation, 56 layers", model="resnet56@preact"),
    )


add_study(
    Study(
        id="degradation",
        title="20 against 56 layers, plain and residual",
        source="He et al. 2015, arXiv 1512.03385, table 6; of the plain nets the paper prints curves only",
        question="is a deeper plain net worse in training, and a deeper residual one not?",
        rows=rows,
        published="test error %, CIFAR-10",
        scaled={
            "quick": "scikit-learn's digits, 150 steps of 64; the published depths",
            "standard": SCALED["standard"],
        },
    )
)
