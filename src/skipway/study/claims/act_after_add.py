"""Claim ``act-after-add``: whether the new unit has its activation behind or in front of something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skipway.diagnostics.inspect import inspect
from skipway.models import create_model
from skipway.parts import Table
from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._measures import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skipway.form import UnitForm

__all__ = ["forms", "judged"]


def forms(name: str) -> list[UnitForm]:
    """What the units of a net are found to be when it runs, each proved."""
    with seeded(0):
        found = inspect(create_model(name), torch.randn(2, 3, 8, 8), structure_only=True)
    return [unit.form for unit in found.units if unit.proof_error is not None]


def judged(new: list[UnitForm], original: list[UnitForm]) -> Judgement:
    """By what stands behind the sum and in front of the weights.

    Args:
        new: units of the proposed net.
        original: units of the net before it.
    """
    behind = {name: sum(bool(f.after) for f in found) for name, found in (("new", new), ("original", original))}
    # The first unit's activation stands in the stem, a projecting one's is shared with its shortcut.
    before = sum(any(op.kind == "activation" for op in f.branch_start) for f in new)
    meant = "in front of the weight layers" if not behind["new"] and before > len(new) / 2 else "not settled by the net"
    return Judgement(
        verdict="documentary",
        figure=f"meant is {meant}: in pre-activation {behind['new']} of {len(new)} units have an activation behind "
        f"the addition, in the original {behind['original']} of {len(original)}",
        words="The document says both: behind the addition in its abstract, in front of the weight layers later. The "
        "second is the published architecture; 'behind the addition' is the original's.",
        numbers={"behind_the_sum": behind, "units": len(new), "activation_in_front_of_the_branch": before},
        parts=(
            Table(
                columns=("net", "unit"),
                rows=tuple((name, f.equation()) for name, f in _equations({"new": new, "original": original})),
                title="Units as they were found in the nets that ran",
            ),
        ),
    )  # fmt: skip


def _equations(found: Mapping[str, list[UnitForm]]) -> list[tuple[str, UnitForm]]:
    return [(name, form) for name, of_net in found.items() for form in dict.fromkeys(of_net)]


@claim(
    "act-after-add",
    source="003, abstract against its later paragraph on pre-activation; He et al. 2016, arXiv 1603.05027, figure 1",
    statement="The activation was moved behind the addition (abstract); it was moved in front of the weight layers "
    "(later).",
    measurement="The published architecture, built and inspected: what is behind the addition of each unit.",
    criterion="Documentary: 'in front of the weight layers' if no unit of the built net has anything behind its "
    "addition and more than half of them begin with an activation.",
)
def check(_bench: Bench) -> Judgement:
    """Both nets at 20 layers."""
    return judged(forms("resnet20@preact"), forms("resnet20"))
