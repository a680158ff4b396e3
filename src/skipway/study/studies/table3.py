"""He et al. 2016, table 3: post- against pre-activation by depth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from skipway.study.budgets import image_settings
from skipway.study.published import Row, Study, add_study
from skipway.study.studies._depth import SCALED

if TYPE_CHECKING:
    from skipway.study.budgets import Budget

# Group, backbone, design of the baseline and of the pre-activation twin, their errors, data.
_PAIRS: Final[tuple[tuple[str, str, str, str, float, float], ...]] = (
    ("110 layers, skips of one layer", "resnet110", "one_layer_skip", "one_layer_skip(preact=true)", 9.90, 8.91),
    ("110 layers", "resnet110", "post_act", "preact", 6.61, 6.37),
    ("164 layers", "resnet164", "post_act", "preact", 5.93, 5.46),
    ("1001 layers", "resnet1001", "post_act", "preact", 7.61, 4.92),
)
_HUNDRED: Final = (("164 layers", 25.16, 24.33), ("1001 layers", 27.82, 22.71))


def rows(budget: Budget) -> tuple[Row, ...]:
    """Pairs by depth; on CIFAR-100 too, and 1001 layers, where the published budget is paid for."""
    if budget == "quick":
        pairs = [("20 layers", "resnet20", "post_act", "preact", 6.61, 6.37)]
        return _of(pairs)
    if budget == "standard":
        return _of([pair for pair in _PAIRS if pair[1] != "resnet1001"])
    settings = image_settings(budget)
    hundred = replace(settings, data=replace(settings.data, name="cifar100"))
    more = [
        Row(
            label=f"{label}, CIFAR-100, {depth}", model=f"resnet{depth.split()[0]}@{design}", published=error,
            group=f"CIFAR-100, {depth}", settings=hundred,
        )
        for depth, *errors in _HUNDRED
        for label, design, error in zip(("baseline", "pre-activation"), ("post_act", "preact"), errors, strict=True)
    ]  # fmt: skip
    return (*_of(list(_PAIRS)), *more)


def _of(pairs: list[tuple[str, str, str, str, float, float]]) -> tuple[Row, ...]:
    return tuple(
        Row(
            label=f"{label}, {group}",
            # The bare name is the same net, so that its runs serve the other tables too.
            model=net if design == "post_act" else f"{net}@{design}",
            published=error,
            group=group,
        )
        for group, net, base, twin, before, after in pairs
        for label, design, error in (("baseline", base, before), ("pre-activation", twin, after))
    )


add_study(
    Study(
        id="table3",
        title="Post- against pre-activation by depth (table 3)",
        source="He et al. 2016, arXiv 1603.05027, table 3",
        question="does pre-activation gain more, the deeper the net?",
        rows=rows,
        published="test error %, CIFAR-10 and CIFAR-100, median of 5 runs",
        scaled={**SCALED, "standard": f"{SCALED['standard']}; 1001 layers and CIFAR-100 left out"},
    )
)
