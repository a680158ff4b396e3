"""BatchNorm after the addition, on the path of the stream."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skipway.blocks import Part
from skipway.designs._registry import register
from skipway.designs._seam import Claims, Site
from skipway.designs._single import Arrangement, PostActLike, after_activation, post_arrangement


@register(equation="x' = ReLU( BN( x + F(x) ) )", citation="He et al. 2016, arXiv 1603.05027, table 2 (b)")
@dataclass(frozen=True, kw_only=True)
class BnAfterAdd(PostActLike):
    """The branch's last BN moved behind the addition.

    ``x' = ReLU( BN( h(x) + Conv·ReLU·BN·Conv(x) ) )``.
    """

    def arrange(self, site: Site) -> Arrangement:
        """conv-BN-ReLU-conv."""
        return replace(post_arrangement(site), end=())

    def behind(self, site: Site) -> tuple[Part, ...]:
        """BN-ReLU."""
        return site.norm.part() + after_activation(site)

    def claims(self) -> Claims:
        """Worse than the original."""
        return Claims(
            identity_at_init=False,
            warm_up=True,
            parameters="as post_act",
            note="the norm alters the stream itself: 8.17 % against 6.61 % (110 layers)",
        )
