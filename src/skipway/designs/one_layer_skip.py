"""Each shortcut spans one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Design, Join, Site, UnitPlan
from skipway.designs._single import ShortcutOption
from skipway.designs.post_act import PostAct
from skipway.designs.preact import Preact


@register(equation="x' = ReLU( x + BN(W x) )", citation="He et al. 2016, arXiv 1603.05027, table 3")
@dataclass(frozen=True, kw_only=True)
class OneLayerSkip(Design):
    """Every convolution is a residual unit of its own.

    ``x' = ReLU( h(x) + BN·Conv(x) )``, or ``x' = h(x) + Conv·ReLU·BN(x)`` with ``preact``. The paper has it for basic
    blocks with option A. In a bottleneck, where widths shrink and grow inside the block, A cuts the last channels off
    or pads with zeros; a projection beside a single 1×1 convolution would be a sum of two linear maps, and no shortcut.
    """

    preact: bool = option(False, "norm and activation before the convolution")
    shortcut: ShortcutOption = option("A", "shortcut where shapes change; auto: the backbone's published one")

    @property
    def unit(self) -> Preact | PostAct:
        """The design of each unit."""
        return Preact(shortcut=self.shortcut) if self.preact else PostAct(shortcut=self.shortcut)

    def layers(self, sites: Sequence[Site]) -> list[Site]:
        """A site for each weight layer."""
        pieces = [(site, block) for site in sites for block in site.block.split()]
        return [
            replace(
                site,
                block=block,
                cut=True,
                index=i,
                count=len(pieces),
                first=site.first and i == 0,
                last=site.last and i == len(pieces) - 1,
            )
            for i, (site, block) in enumerate(pieces)
        ]

    def plan(self, sites: Sequence[Site]) -> tuple[UnitPlan, ...]:
        """As many units as weight layers."""
        return self.unit.plan(self.layers(sites))

    def join(self, plan: UnitPlan) -> Join:
        """That of the unit's design."""
        return self.unit.join(plan)

    def entry(self, plans: Sequence[UnitPlan]) -> nn.Module | None:
        """That of the unit's design."""
        return self.unit.entry(plans)

    def exit(self, plans: Sequence[UnitPlan]) -> nn.Module | None:
        """That of the unit's design."""
        return self.unit.exit(plans)

    def claims(self) -> Claims:
        """Worse than two layers a unit."""
        return Claims(
            identity_at_init=False,
            warm_up=not self.preact,
            parameters="as post_act or preact",
            note="110 layers: 9.90 %, with pre-activation 8.91 %",
        )

    def extra_parameters(self, sites: Sequence[Site]) -> int | None:
        """Projections, as the unit's design has them."""
        return self.unit.extra_parameters(self.layers(sites))
