"""Concatenation: every unit reads all that was made before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skipway.blocks import Mode, activation
from skipway.blocks.slot import Slots, add_parts, chain
from skipway.designs._registry import option, register
from skipway.designs._seam import BranchPlan, Claims, Design, Inputs, Join, Site, UnitPlan, forms_by_mode
from skipway.designs._single import Arrangement, pre_arrangement, refuse_shortcut
from skipway.errors import ShapeMismatchError, SkipwayError
from skipway.form import UnitForm


class DenseJoin(Join):
    """x' = [x, F(x)]: (N,C,H,W) to (N,C+k,H,W), or (…,D) to (…,D+k).

    Args:
        dim: of the channels.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def read(self, state: Tensor, t: Tensor | None) -> tuple[Inputs, Tensor]:
        """All that was made so far."""
        return ((state,),), state

    def write(self, carry: Tensor, outputs: tuple[Any, ...], t: Tensor | None) -> Tensor:
        """Append the branch's output."""
        branch: Tensor = outputs[0]
        if carry.shape[2:] != branch.shape[2:] and self.dim == 1:
            raise ShapeMismatchError(
                f"cannot concatenate stream {tuple(carry.shape)} and branch {tuple(branch.shape)}",
                "equal height and width",
                "a branch of stride 1",
            )
        return torch.cat((carry, branch), self.dim)


@register(equation="x' = [ x, F(x) ]", citation="Huang et al. 2016, arXiv 1608.06993")
@dataclass(frozen=True, kw_only=True)
class Dense(Design):
    """Each unit appends k channels to the stream and reads all of it.

    ``x' = [ x, F(x) ]``, F = ``Conv·ReLU·BN·…·Conv·ReLU·BN`` on images. Where a backbone halves the image, a transition
    ``AvgPool·Conv1×1·ReLU·BN`` keeps the fraction ``compression`` of the channels. Cost grows with the square of depth
    within a stage.
    """

    growth: int = option(0, "k, channels a unit appends; 0: the backbone's, or an eighth of the unit's width")
    compression: float = option(0.5, "fraction of the channels that a transition keeps, above 0 to 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.growth < 0 or not 0 < self.compression <= 1:
            raise SkipwayError(
                f"dense with growth={self.growth}, compression={self.compression}",
                "growth 0 or more, compression above 0 and at most 1",
            )

    def plan(self, sites: Sequence[Site]) -> tuple[UnitPlan, ...]:
        """Widths grow along the stack; branches keep their inner widths."""
        plans: list[UnitPlan] = []
        width = sites[0].block.in_width
        for i, site in enumerate(sites):
            before = width
            if self._shrinks(site):
                width = max(1, int(width * self.compression))
            plans.append(self._unit(site, before, width))
            width = plans[i].out_width
        return tuple(plans)

    def _shrinks(self, site: Site) -> bool:
        return site.block.stride != 1 and site.block.style != "opaque"

    def _unit(self, site: Site, before: int, width: int) -> UnitPlan:
        growth = self.growth or site.growth or max(1, site.block.out_width // 8)
        refuse_shortcut(self, site)
        if site.block.style == "opaque":
            growth = site.block.out_width
            if self.growth not in (0, growth):
                raise SkipwayError(
                    f"dense with growth={self.growth} and a branch that writes {growth} channels",
                    "the number that the branch writes, or 0",
                    "dense",
                )
        block = site.block.resized(in_width=width, out_width=growth)
        arrangement = pre_arrangement(site) if block.style != "layer" else Arrangement()
        slots: Slots = {"start": arrangement.start}
        if "between" in block.slots():
            slots = {**slots, "between": arrangement.between}

        def form(mode: Mode) -> UnitForm:
            return UnitForm(merge="concat", branch=block.ops(slots, mode))

        return UnitPlan(
            site=site,
            branches=(BranchPlan(block=block, slots=slots),),
            forms=forms_by_mode(form),
            in_width=before,
            out_width=width + growth,
            constant_state=False,
        )

    def join(self, plan: UnitPlan) -> Join:
        """The join."""
        return DenseJoin(1 if plan.site.block.layout == "NCHW" else -1)

    def transition(self, plan: UnitPlan) -> nn.Module | None:
        """BN-ReLU-1×1-pool where the backbone halves the image."""
        site, width = plan.site, plan.branches[0].block.in_width
        if not self._shrinks(site):
            return None
        sequence = nn.Sequential()
        add_parts(sequence, site.norm.part() + activation(site.act), plan.in_width, "NCHW", fresh=False)
        sequence.add_module("conv1", nn.Conv2d(plan.in_width, width, 1, bias=False))
        sequence.add_module("pool1", nn.AvgPool2d(site.block.stride))
        return sequence

    def exit(self, plans: Sequence[UnitPlan]) -> nn.Module | None:
        """BN-ReLU on images, the norm on tokens."""
        site, width = plans[-1].site, plans[-1].out_width
        parts = pre_arrangement(site).start if site.block.style in ("conv", "token") else ()
        return chain(parts, width, site.block.layout, fresh=False)

    def claims(self) -> Claims:
        """Features are reused, not refined."""
        return Claims(
            identity_at_init=False,
            warm_up=False,
            parameters="branches read what all earlier ones wrote",
            note="the stream's width grows by k a unit",
        )
