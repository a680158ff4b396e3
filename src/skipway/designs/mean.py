"""The mean of shortcut and branch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from skipway.blocks import Mode
from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site, UnitPlan
from skipway.designs._single import PostActLike, SingleJoin
from skipway.form import Op


class MeanJoin(SingleJoin):
    """w·h + w·f."""

    def __init__(self, site: Site, design: Mean) -> None:
        super().__init__(site, design)
        self.weight = design.weight

    def combine(self, x: Tensor, h: Tensor, f: Tensor) -> Tensor:
        """Both terms weighted."""
        return self.weight * self.fit(h, f) + self.weight * f


@register(equation="x' = ReLU( (x + F(x)) / 2 )", citation="Larsson et al. 2016, arXiv 1605.07648 (mean of paths)")
@dataclass(frozen=True, kw_only=True)
class Mean(PostActLike):
    """Shortcut and branch with equal weights that do not add to two.

    ``x' = ReLU( w·h(x) + w·F(x) )`` with w = ½, or w = 1/√2, which keeps the variance of independent terms.
    """

    keep: Literal["mean", "variance"] = option("mean", "what the weights keep: mean, w = 1/2; variance, w = 1/√2")

    @property
    def weight(self) -> float:
        """W."""
        return 0.5 if self.keep == "mean" else math.sqrt(0.5)

    def shortcut_tail(self, site: Site, mode: Mode) -> tuple[Op, ...]:
        """W."""
        return (Op("scale", self.weight),)

    def branch_tail(self, site: Site, mode: Mode) -> tuple[Op, ...]:
        """W."""
        return (Op("scale", self.weight),)

    def join(self, plan: UnitPlan) -> MeanJoin:
        """The join."""
        return MeanJoin(plan.site, self)

    def claims(self) -> Claims:
        """As constant scaling with λ = w."""
        return Claims(
            identity_at_init=False, warm_up=True, parameters="none", note="the identity path shrinks like w^L"
        )
