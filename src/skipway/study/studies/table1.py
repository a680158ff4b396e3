"""He et al. 2016, table 1: what stands on the shortcut of ResNet-110."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.published import Row, Study, add_study
from skipway.study.studies._depth import SCALED, resnet_depth

if TYPE_CHECKING:
    from skipway.study.budgets import Budget


def rows(budget: Budget) -> tuple[Row, ...]:
    """The eleven rows, and dropout once more by PyTorch's convention."""
    depth = resnet_depth(budget)
    net = f"resnet{depth}"
    return (
        Row(label="original: identity", model=net, published=6.61),
        Row(label="constant scaling 0 | 1: plain", model=f"plain{depth}", published="fail"),
        Row(label="constant scaling 0.5 | 1", model=f"{net}@scaled(lam=0.5,mu=1)", published="fail"),
        Row(label="constant scaling 0.5 | 0.5", model=f"{net}@scaled(lam=0.5,mu=0.5)", published=12.35),
        Row(label="exclusive gate, b = 0", model=f"{net}@exclusive_gate(bias=0)", published="fail"),
        Row(label="exclusive gate, b = -6", model=f"{net}@exclusive_gate(bias=-6)", published=8.70),
        Row(label="exclusive gate, b = -7", model=f"{net}@exclusive_gate(bias=-7)", published=9.81),
        Row(label="shortcut-only gate, b = 0", model=f"{net}@shortcut_gate(bias=0)", published=12.86),
        Row(label="shortcut-only gate, b = -6", model=f"{net}@shortcut_gate(bias=-6)", published=6.91),
        Row(label="1×1 convolution", model=f"{net}@conv_shortcut", published=12.22),
        Row(label="dropout 0.5", model=f"{net}@dropout_shortcut", published="fail"),
        Row(label="dropout 0.5, rescaled in training", model=f"{net}@dropout_shortcut(inverted=true)"),
    )


add_study(
    Study(
        id="table1",
        title="Shortcuts of ResNet-110 (table 1)",
        source="He et al. 2016, arXiv 1603.05027, table 1",
        question="does anything but the identity on the shortcut train as well?",
        rows=rows,
        published="test error %, CIFAR-10, median of 5 runs; fail: above 20 %",
        scaled=SCALED,
    )
)
