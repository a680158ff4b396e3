"""The plain stack, without any shortcut: the baseline that degrades with depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from skipway.blocks import Part
from skipway.designs._registry import register
from skipway.designs._seam import Claims, Site
from skipway.designs._single import (
    Arrangement,
    SingleJoin,
    SingleStream,
    after_activation,
    final_norm,
    post_arrangement,
)
from skipway.form import Merge


class PlainJoin(SingleJoin):
    """x' = f(F(x))."""

    def combine(self, x: Tensor, h: Tensor, f: Tensor) -> Tensor:
        """The branch alone."""
        return f


@register(equation="x' = ReLU( F(x) )", citation="He et al. 2015, arXiv 1512.03385, section 3.3")
@dataclass(frozen=True, kw_only=True)
class Plain(SingleStream):
    """No shortcut; deeper plain nets train worse.

    ``x' = ReLU( BN·Conv·ReLU·BN·Conv(x) )`` on images; ``F(N x)`` on tokens; ``φ(W x)`` on layer stacks.
    """

    merge: ClassVar[Merge] = "none"
    join_type: ClassVar[type[SingleJoin]] = PlainJoin

    def arrange(self, site: Site) -> Arrangement:
        """As the residual net that it is compared with."""
        return post_arrangement(site)

    def behind(self, site: Site) -> tuple[Part, ...]:
        """ReLU on images."""
        return after_activation(site)

    def exit_parts(self, site: Site) -> tuple[Part, ...]:
        """A final norm on tokens."""
        return final_norm(site)

    def claims(self) -> Claims:
        """Nothing but what it lacks."""
        return Claims(identity_at_init=False, warm_up=True, parameters="none", note="degrades with depth")

    def extra_parameters(self, sites: Sequence[Site]) -> int | None:
        """None: it is the yardstick."""
        return 0
