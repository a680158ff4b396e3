"""Constant scaling of shortcut and branch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from skipway.blocks import Mode
from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site, UnitPlan
from skipway.designs._single import PostActLike, SingleJoin
from skipway.errors import SkipwayError
from skipway.form import Op


class ScaledJoin(SingleJoin):
    """λ·h + μ·f."""

    def __init__(self, site: Site, design: Scaled) -> None:
        super().__init__(site, design)
        self.lam, self.mu = design.lam, design.mu

    def combine(self, x: Tensor, h: Tensor, f: Tensor) -> Tensor:
        """Multiplications by 1 are left out."""
        h = self.fit(h, f)
        if self.lam != 1:
            h = self.lam * h
        return h + (f if self.mu == 1 else self.mu * f)


@register(equation="x' = ReLU( λ·x + μ·F(x) )", citation="He et al. 2016, arXiv 1603.05027, table 1 (b)")
@dataclass(frozen=True, kw_only=True)
class Scaled(PostActLike):
    """Shortcut and branch each multiplied by a constant.

    ``x' = ReLU( λ·h(x) + μ·F(x) )``. The product of the λ of all units kills the signal where λ < 1 (equation 8) and
    lets it explode where λ > 1. (0.5, 0.5) is the paper's frozen gating; (0, 1), its plain net, is the design
    ``plain``. A branch scale alone (λ = 1, μ = 0.1 … 0.3) is that of Inception-ResNet (arXiv 1602.07261).
    """

    lam: float = option(0.5, "λ, on the shortcut; not 0")
    mu: float = option(0.5, "μ, on the branch; not 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam == 0:
            raise SkipwayError("scaled with lam=0 has no shortcut", "lam other than 0", "the design plain")
        if self.mu == 0:
            raise SkipwayError("scaled with mu=0 has no branch", "mu other than 0", "scaled(lam=1,mu=0.1)")

    def shortcut_tail(self, site: Site, mode: Mode) -> tuple[Op, ...]:
        """λ."""
        return (Op("scale", self.lam),)

    def branch_tail(self, site: Site, mode: Mode) -> tuple[Op, ...]:
        """μ."""
        return (Op("scale", self.mu),)

    def join(self, plan: UnitPlan) -> ScaledJoin:
        """The join."""
        return ScaledJoin(plan.site, self)

    def claims(self) -> Claims:
        """λ = 0.5 fails at 110 layers with μ = 1 and reaches 12.35 % with μ = 0.5."""
        return Claims(identity_at_init=False, warm_up=True, parameters="none", note="signal falls or grows like λ^L")
