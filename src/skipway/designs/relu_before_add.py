"""ReLU at the end of the branch, before the addition."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skipway.blocks import Part, activation
from skipway.designs._registry import register
from skipway.designs._seam import Claims, Site
from skipway.designs._single import Arrangement, PostActLike, post_arrangement


@register(equation="x' = x + ReLU( F(x) )", citation="He et al. 2016, arXiv 1603.05027, table 2 (c)")
@dataclass(frozen=True, kw_only=True)
class ReluBeforeAdd(PostActLike):
    """The activation moved from behind the addition into the branch.

    ``x' = h(x) + ReLU·BN·Conv·ReLU·BN·Conv(x)``. The branch is never negative, so the stream can only grow.
    """

    def arrange(self, site: Site) -> Arrangement:
        """conv-BN-ReLU-conv-BN-ReLU."""
        arrangement = post_arrangement(site)
        return replace(arrangement, end=arrangement.end + activation(site.act))

    def behind(self, site: Site) -> tuple[Part, ...]:
        """Nothing."""
        return ()

    def claims(self) -> Claims:
        """Worse than the original."""
        return Claims(
            identity_at_init=False,
            warm_up=True,
            parameters="as post_act",
            note="the stream is monotone: 7.84 % against 6.61 % (110 layers)",
        )
