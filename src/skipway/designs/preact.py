"""Full pre-activation, ResNet v2, with its rule for the first, the last and the projecting units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from skipway.blocks import Part, activation, dropout
from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site, UnitLike
from skipway.designs._single import (
    Arrangement,
    ShortcutOption,
    SingleStream,
    pre_arrangement,
    projection_parameters,
    projects,
    shortcut_parts,
    zero_branch_ends_,
)
from skipway.errors import SkipwayError


@register(equation="x' = x + F( ReLU(BN(x)) )", citation="He et al. 2016, arXiv 1603.05027, table 2 (e) and appendix")
@dataclass(frozen=True, kw_only=True)
class Preact(SingleStream):
    """Norm and activation before each weight; nothing but the addition on the stream.

    ``x' = x + Conv·ReLU·BN·Conv·ReLU·BN(x)``. By the paper's appendix: the first unit's activation sits right behind
    the stem, before shortcut and branch part; a projecting unit's activation is shared by both; behind the last
    addition stands one more BN-ReLU. A projection has no norm.
    """

    shortcut: ShortcutOption = option("auto", "shortcut where shapes change; auto: the backbone's published one")
    zero_init: bool = option(False, "start each branch at zero by its last weights")
    dropout: float = option(0.0, "probability between the convolutions, as in Wide ResNets (arXiv 1605.07146)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise SkipwayError(f"preact with dropout={self.dropout}", "a probability from 0 to below 1")

    def arrange(self, site: Site) -> Arrangement:
        """BN-ReLU-conv-BN-ReLU-conv; the leading pair moves where the stream already has it."""
        arrangement = pre_arrangement(site)
        arrangement = replace(arrangement, between=arrangement.between + dropout(self.dropout))
        if site.first or projects(site, self.shortcut):
            return replace(arrangement, start=())
        return arrangement

    def stream_parts(self, site: Site) -> tuple[Part, ...]:
        """The shared activation of a projecting unit."""
        return self._activate(site) if projects(site, self.shortcut) and not site.first else ()

    def on_shortcut(self, site: Site) -> tuple[Part, ...]:
        """Option A, B or C; a projection without norm."""
        return shortcut_parts(site, self.shortcut, norm=False)

    def entry_parts(self, site: Site) -> tuple[Part, ...]:
        """The first unit's activation, unless the stem brings it."""
        return () if site.activated else self._activate(site)

    def exit_parts(self, site: Site) -> tuple[Part, ...]:
        """The activation behind the last addition."""
        return self._activate(site)

    def _activate(self, site: Site) -> tuple[Part, ...]:
        return site.norm.part() + activation(site.act)

    def init_(self, units: Sequence[UnitLike], rng: torch.Generator | None = None) -> None:
        """Zero the branch ends if asked."""
        super().init_(units, rng)
        if self.zero_init:
            zero_branch_ends_(units)

    def claims(self) -> Claims:
        """The clean path; no warm-up, says the paper."""
        return Claims(
            identity_at_init=self.zero_init,
            warm_up=False,
            parameters="A: none; B: c·c' where shapes change; C: that on every unit",
            note="4.92 % against 7.61 % of the original at 1,001 layers",
        )

    def extra_parameters(self, sites: Sequence[Site]) -> int | None:
        """Projections; the norms only change their places."""
        return sum(projection_parameters(site, self.shortcut, norm=False) for site in sites)
