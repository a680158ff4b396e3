"""Residual designs, one file each; the file's name is the design's id."""

from skipway.designs._registry import DESIGNS, DesignInfo, Option, design_from, register
from skipway.designs._seam import (
    BranchPlan,
    Claims,
    Design,
    Inputs,
    Join,
    ParameterRule,
    Site,
    State,
    UnitLike,
    UnitPlan,
)

__all__ = [
    "DESIGNS", "BranchPlan", "Claims", "Design", "DesignInfo", "Inputs", "Join", "Option", "ParameterRule", "Site",
    "State", "UnitLike", "UnitPlan", "design_from", "register",
]  # fmt: skip
