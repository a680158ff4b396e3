"""He et al. 2016, section 3.1: the bias with which an exclusive gate starts decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.study.budgets import by_budget, seeds_of
from skipway.study.published import Row, Study, add_study
from skipway.study.studies._depth import SCALED, resnet_depth

if TYPE_CHECKING:
    from skipway.study.budgets import Budget
    from skipway.study.published import Published

_PUBLISHED: Final[dict[int, Published]] = {**dict.fromkeys(range(0, -6, -1), "fail"), -6: 8.70, -7: 9.81}


def rows(budget: Budget) -> tuple[Row, ...]:
    """One row for each bias: all from 0 to -10 at the published budget, every other one below it."""
    biases = by_budget(budget, quick=(0, -6), standard=(0, -2, -4, -5, -6, -7, -8, -10), paper=tuple(range(0, -11, -1)))
    net = f"resnet{resnet_depth(budget)}"
    return tuple(
        Row(label=f"b = {bias}", model=f"{net}@exclusive_gate(bias={bias})", published=_PUBLISHED.get(bias))
        for bias in biases
    )


add_study(
    Study(
        id="gate-bias",
        title="The initial bias of an exclusive gate",
        source="He et al. 2016, arXiv 1603.05027, section 3.1 and table 1 (c)",
        question="from which bias on does a gated net train?",
        rows=rows,
        # The question is where along the row it changes; table 1 repeats three of the biases with three seeds.
        seeds=lambda budget: 1 if budget == "standard" else seeds_of(budget),
        published="test error %, ResNet-110 on CIFAR-10, median of 5 runs; fail: above 20 %; searched from 0 to -10",
        scaled=SCALED,
    )
)
