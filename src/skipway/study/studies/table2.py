"""He et al. 2016, table 2: where norm and activation stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.study.published import Row, Study, add_study
from skipway.study.studies._depth import SCALED, resnet_depth

if TYPE_CHECKING:
    from skipway.study.budgets import Budget

# Label, design, and the error at 110 and 164 layers.
_ROWS: Final = (
    ("original", "", 6.61, 5.93),
    ("BN after addition", "@bn_after_add", 8.17, 6.50),
    ("ReLU before addition", "@relu_before_add", 7.84, 6.14),
    ("ReLU-only pre-activation", "@relu_only_preact", 6.71, 5.91),
    ("full pre-activation", "@preact", 6.37, 5.46),
)


def rows(budget: Budget) -> tuple[Row, ...]:
    """Five placements; at 164 layers too where the published budget is paid for."""
    depth = resnet_depth(budget)
    first = [
        Row(label=label, model=f"resnet{depth}{design}", published=error, group=f"{depth} layers")
        for label, design, error, _ in _ROWS
    ]
    if budget != "paper":
        return tuple(first)
    deep = [
        Row(label=label, model=f"resnet164{design}", published=error, group="164 layers")
        for label, design, _, error in _ROWS
    ]
    return (*first, *deep)


add_study(
    Study(
        id="table2",
        title="Activations of ResNet-110 and 164 (table 2)",
        source="He et al. 2016, arXiv 1603.05027, table 2",
        question="where do norm and activation belong?",
        rows=rows,
        published="test error %, CIFAR-10, median of 5 runs",
        scaled=SCALED,
    )
)
