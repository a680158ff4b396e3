"""ResNet v1: activation after the addition, with option A, B or C shortcuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, UnitLike
from skipway.designs._single import PostActLike, zero_branch_ends_


@register(equation="x' = ReLU( h(x) + F(x) )", citation="He et al. 2015, arXiv 1512.03385")
@dataclass(frozen=True, kw_only=True)
class PostAct(PostActLike):
    """The original residual unit, activation after the addition.

    ``x' = ReLU( h(x) + BN·Conv·ReLU·BN·Conv(x) )``. Where shapes change, h is A: every stride-th pixel with zeros as
    new channels; B: 1×1 convolution and BN. C has that projection on every shortcut. On tokens and layer stacks it
    is the plain addition ``x' = x + F(x)``.
    """

    zero_init: bool = option(False, "start each branch at zero by its last gain (arXiv 1706.02677)")

    def init_(self, units: Sequence[UnitLike], rng: torch.Generator | None = None) -> None:
        """Zero the branch ends if asked."""
        super().init_(units, rng)
        if self.zero_init:
            zero_branch_ends_(units)

    def claims(self) -> Claims:
        """At 110 layers the paper warms up at a tenth of the learning rate."""
        return Claims(
            identity_at_init=self.zero_init,
            warm_up=True,
            parameters="A: none; B: c·c' + 2c' where shapes change; C: that on every unit",
            note="the ReLU after the addition truncates the stream in both directions",
        )
