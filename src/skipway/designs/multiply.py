"""Multiplication instead of addition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site, UnitPlan
from skipway.designs._single import PostActLike, SingleJoin
from skipway.form import Merge


class MultiplyJoin(SingleJoin):
    """h ⊙ (1 + f), or h ⊙ f."""

    def __init__(self, site: Site, design: Multiply) -> None:
        super().__init__(site, design)
        self.plus_one = design.plus_one

    def combine(self, x: Tensor, h: Tensor, f: Tensor) -> Tensor:
        """The product."""
        return self.fit(h, f) * (1 + f if self.plus_one else f)


@register(
    equation="x' = ReLU( x ⊙ (1 + F(x)) )", citation="defined here; no canonical paper for a product across depth"
)
@dataclass(frozen=True, kw_only=True)
class Multiply(PostActLike):
    """The stream is multiplied by the branch.

    ``x' = ReLU( h(x) ⊙ (1 + F(x)) )``; without ``plus_one`` ``x' = ReLU( h(x) ⊙ F(x) )``. The gradient reaches x
    through the factor, so there is no path on which it arrives unchanged.
    """

    merge: ClassVar[Merge] = "multiply"
    plus_one: bool = option(True, "multiply by 1 + F(x), so that F = 0 is the identity")

    def join(self, plan: UnitPlan) -> MultiplyJoin:
        """The join."""
        return MultiplyJoin(plan.site, self)

    def claims(self) -> Claims:
        """Products of L factors."""
        return Claims(
            identity_at_init=False, warm_up=True, parameters="none", note="signal is a product of L random factors"
        )
