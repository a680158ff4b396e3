"""Norm after the addition: the original transformer."""

from __future__ import annotations

from dataclasses import dataclass

from skipway.blocks import Part
from skipway.designs._norm import NormOption, chosen_norm
from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site
from skipway.designs._single import Arrangement, SingleStream


@register(equation="x' = N( x + F(x) )", citation="Vaswani et al. 2017, arXiv 1706.03762")
@dataclass(frozen=True, kw_only=True)
class PostNorm(SingleStream):
    """Each sublayer's sum is normalised, on the path of the stream.

    ``x' = N( x + F(x) )``.
    """

    norm: NormOption = option("auto", "norm N; auto: the backbone's")

    def arrange(self, site: Site) -> Arrangement:
        """No norm in the branch."""
        return Arrangement()

    def behind(self, site: Site) -> tuple[Part, ...]:
        """The norm."""
        return chosen_norm(site, self.norm).part()

    def claims(self) -> Claims:
        """Needs warm-up (arXiv 2002.04745)."""
        return Claims(
            identity_at_init=False,
            warm_up=True,
            parameters="2d a sublayer",
            note="deep stacks collapse without warm-up or repair of the scales",
        )
