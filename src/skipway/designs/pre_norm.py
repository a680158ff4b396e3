"""Norm at the start of the branch: the modern transformer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from skipway.blocks import Part, weight_layers
from skipway.designs._norm import NormOption, chosen_norm
from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site, UnitLike
from skipway.designs._single import Arrangement, SingleStream, own_layers, zero_branch_ends_
from skipway.errors import SkipwayError


@register(equation="x' = x + F( N(x) )", citation="Xiong et al. 2020, arXiv 2002.04745; GPT-2 for the scaled init")
@dataclass(frozen=True, kw_only=True)
class PreNorm(SingleStream):
    """A clean stream; each branch normalises what it reads, one more norm stands behind the last unit.

    ``x' = x + F( N(x) )``. With ``init=gpt2`` the last weights of each branch start with standard deviation
    0.02/√(2L), L blocks of two sublayers.
    """

    norm: NormOption = option("auto", "norm N; auto: the backbone's")
    init: Literal["default", "gpt2"] = option("default", "gpt2: scale the last weights of each branch by depth")
    zero_init: bool = option(False, "start each branch at zero by its last weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zero_init and self.init == "gpt2":
            raise SkipwayError("pre_norm with both zero_init and init=gpt2", "one initialisation of the last weights")

    def arrange(self, site: Site) -> Arrangement:
        """The norm first."""
        return Arrangement(start=chosen_norm(site, self.norm).part())

    def exit_parts(self, site: Site) -> tuple[Part, ...]:
        """The final norm."""
        return chosen_norm(site, self.norm).part()

    def init_(self, units: Sequence[UnitLike], rng: torch.Generator | None = None) -> None:
        """Zero or scale the branch ends if asked."""
        super().init_(units, rng)
        if self.zero_init:
            zero_branch_ends_(units)
        if self.init == "gpt2":
            for unit in units:
                for branch, plan in zip(unit.branches, unit.plan.branches, strict=True):
                    layers = weight_layers(own_layers(plan.block, branch))
                    if not layers:
                        raise SkipwayError(
                            "init=gpt2 on a branch without a convolution or linear layer of its own",
                            "a branch whose last such layer can be scaled",
                            "pre_norm",
                        )
                    nn.init.normal_(layers[-1].weight, std=0.02 / math.sqrt(len(units)), generator=rng)

    def claims(self) -> Claims:
        """Stable without warm-up; later units matter less and less."""
        return Claims(
            identity_at_init=self.zero_init,
            warm_up=False,
            parameters="2d a sublayer and 2d at the end (d each with rms)",
            note="the stream grows like √L, so that late units change it little",
        )
