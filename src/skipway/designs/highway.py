"""Highway: transform gate on the branch, its complement on the shortcut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skipway.blocks import Mode, Part
from skipway.designs._gate import Gate, gate_parameters
from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site, UnitPlan
from skipway.designs._single import (
    Arrangement,
    PostActLike,
    SingleJoin,
    after_activation,
    post_arrangement,
    projection_parameters,
)
from skipway.form import Op


class HighwayJoin(SingleJoin):
    """T⊙f + (1−T)⊙h, T = σ(W_T x + b_T)."""

    def __init__(self, site: Site, design: Highway) -> None:
        super().__init__(site, design)
        self.gate = Gate(site.block, bias=design.bias, kernel=3)

    def combine(self, x: Tensor, h: Tensor, f: Tensor) -> Tensor:
        """The gate reads x."""
        t: Tensor = self.gate(x)
        return t * f + (1 - t) * self.fit(h, f)

    def init_(self, rng: torch.Generator | None) -> None:
        """The bias."""
        self.gate.init_()


@register(equation="x' = T(x)⊙H(x) + (1−T(x))⊙x", citation="Srivastava et al. 2015, arXiv 1505.00387, 1507.06228")
@dataclass(frozen=True, kw_only=True)
class Highway(PostActLike):
    """A learned gate of the layer's own size; nothing behind the merge.

    ``T = σ(W_T x + b_T)``, W_T a 3×3 convolution (a linear layer on tokens and layer stacks); ``x' = T⊙H(x) +
    (1−T)⊙h(x)``. On images H ends with its activation: ``H = ReLU·BN·Conv·ReLU·BN·Conv``.
    """

    bias: float = option(-3.0, "b_T at initialisation; -1 to -4, lower for deeper nets")

    def arrange(self, site: Site) -> Arrangement:
        """conv-BN-ReLU-conv-BN-ReLU."""
        arrangement = post_arrangement(site)
        return replace(arrangement, end=arrangement.end + after_activation(site))

    def behind(self, site: Site) -> tuple[Part, ...]:
        """Nothing."""
        return ()

    def shortcut_tail(self, site: Site, mode: Mode) -> tuple[Op, ...]:
        """1−T."""
        return (Op("gate", "1-g"),)

    def branch_tail(self, site: Site, mode: Mode) -> tuple[Op, ...]:
        """T."""
        return (Op("gate", "g"),)

    def join(self, plan: UnitPlan) -> HighwayJoin:
        """The join."""
        return HighwayJoin(plan.site, self)

    def claims(self) -> Claims:
        """Trains 100 layers and more."""
        return Claims(
            identity_at_init=False,
            warm_up=False,
            parameters="9·c·c' + c' a unit; d² + d on tokens",
            note="CIFAR-10: 7.72 % with 19 layers",
        )

    def extra_parameters(self, sites: Sequence[Site]) -> int | None:
        """Gates, and projections with their norms."""
        return sum(gate_parameters(site.block, 3) + projection_parameters(site, self.shortcut) for site in sites)
