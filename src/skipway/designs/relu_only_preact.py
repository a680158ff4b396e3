"""ReLU before the weights, BatchNorm behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skipway.blocks import Part, activation
from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site
from skipway.designs._single import (
    Arrangement,
    ShortcutOption,
    SingleStream,
    projection_parameters,
    projects,
    shortcut_parts,
)


@register(equation="x' = x + F( ReLU(x) )", citation="He et al. 2016, arXiv 1603.05027, table 2 (d) and appendix")
@dataclass(frozen=True, kw_only=True)
class ReluOnlyPreact(SingleStream):
    """The activation moved to the front of the branch, the norms left behind the weights.

    ``x' = x + BN·Conv·ReLU·BN·Conv·ReLU(x)``, with the first- and last-unit rule of pre-activation: the first ReLU sits
    right behind the stem, a projecting unit shares its ReLU, one more ReLU stands behind the last addition.
    """

    shortcut: ShortcutOption = option("auto", "shortcut where shapes change; auto: the backbone's published one")

    def arrange(self, site: Site) -> Arrangement:
        """ReLU-conv-BN-ReLU-conv-BN."""
        norm, act = site.norm.part(), activation(site.act)
        shared = site.first or projects(site, self.shortcut)
        end = norm if site.block.style == "conv" else ()
        return Arrangement(start=() if shared else act, between=norm + act, end=end)

    def stream_parts(self, site: Site) -> tuple[Part, ...]:
        """The shared activation of a projecting unit."""
        return activation(site.act) if projects(site, self.shortcut) and not site.first else ()

    def on_shortcut(self, site: Site) -> tuple[Part, ...]:
        """Option A, B or C."""
        return shortcut_parts(site, self.shortcut)

    def entry_parts(self, site: Site) -> tuple[Part, ...]:
        """The first unit's activation, unless the stem brings it."""
        return () if site.activated else activation(site.act)

    def exit_parts(self, site: Site) -> tuple[Part, ...]:
        """The activation behind the last addition."""
        return activation(site.act)

    def claims(self) -> Claims:
        """About as good as the original: the ReLU stands without its norm."""
        return Claims(
            identity_at_init=False, warm_up=False, parameters="as post_act", note="6.71 % against 6.61 % (110 layers)"
        )

    def extra_parameters(self, sites: Sequence[Site]) -> int | None:
        """Projections and their norms."""
        return sum(projection_parameters(site, self.shortcut) for site in sites)
