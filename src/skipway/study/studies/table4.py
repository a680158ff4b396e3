"""He et al. 2016, table 4: the best published figures on CIFAR-10 at the time, and the nets of the paper among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.published import Row, Study, add_study
from skipway.study.studies._depth import SCALED

if TYPE_CHECKING:
    from skipway.study.budgets import Budget


def rows(budget: Budget) -> tuple[Row, ...]:
    """The residual nets of the table."""
    if budget == "quick":
        return (
            Row(label="ResNet-110", model="resnet20", published=6.61),
            Row(label="pre-activation ResNet-164", model="resnet20@preact", published=5.46),
        )
    kept = (
        Row(label="ResNet-110 (1.7M)", model="resnet110", published=6.61),
        Row(label="pre-activation ResNet-164 (1.7M)", model="resnet164@preact", published=5.46),
    )
    if budget == "standard":
        return kept
    return (
        *kept,
        Row(label="ResNet-1202 (19.4M)", model="resnet1202", published=7.93),
        Row(label="pre-activation ResNet-1001 (10.2M)", model="resnet1001@preact", published=4.92),
    )


add_study(
    Study(
        id="table4",
        title="The paper's nets among the published (table 4)",
        source="He et al. 2016, arXiv 1603.05027, table 4",
        question="how do the residual nets stand beside others?",
        rows=rows,
        published="test error %, CIFAR-10, as each paper reports it",
        scaled={**SCALED, "standard": f"{SCALED['standard']}; 1001 and 1202 layers left out"},
        others={
            "NIN": 8.81, "DSN": 8.22, "FitNet": 8.39, "Highway": 7.72, "All-CNN": 7.25, "ELU": 6.55,
            "FitResNet, LSUV": 5.84, "pre-activation ResNet-1001, batch 64": 4.62,
        },
    )
)  # fmt: skip
