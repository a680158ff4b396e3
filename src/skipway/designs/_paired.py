"""Designs with two streams wherever the shape stays; norms and activations come before the weights.

A unit that changes the shape stands on one stream, as an ordinary unit: the pair is closed before it and opened again
behind it, as in reversible vision transformers (Mangalam et al. 2022, arXiv 2302.04869).

Shapes: N batch, C channels, H and W image, T tokens, D width. Both streams have the shape of the one that they are
opened from, so that branches are as wide as the backbone says.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from torch import Tensor, nn

from skipway.blocks import Mode, Part, activation
from skipway.blocks.slot import add_parts
from skipway.designs._registry import option
from skipway.designs._seam import Join, Site, State, UnitPlan, forms_by_mode
from skipway.designs._single import (
    Arrangement,
    SingleJoin,
    SingleStream,
    pre_arrangement,
    projection_parameters,
    projects,
    shortcut_parts,
)
from skipway.errors import SkipwayError
from skipway.form import Op, UnitForm

__all__ = ["Change", "PairedStream", "Role"]

ChangeOption: TypeAlias = Literal["auto", "A", "B"]


@dataclass(frozen=True, kw_only=True)
class Role:
    """What a unit is among its neighbours.

    Args:
        paired: whether it reads and writes a pair; else it is an ordinary unit on one stream.
        before: what is done to the state before it.
        place: among the paired units that follow each other, from 0.
    """

    paired: bool
    before: Literal["open", "close", "nothing"]
    place: int = 0


class Change(nn.Module):
    """One stream to a pair, or a pair to one stream.

    Args:
        change: does it.
    """

    def __init__(self, change: Callable[[State], State]) -> None:
        super().__init__()
        self.change = change

    def forward(self, state: State) -> State:
        """The state in its other shape."""
        return self.change(state)

    def extra_repr(self) -> str:
        """What it does."""
        return getattr(self.change, "__name__", "")


@dataclass(frozen=True, kw_only=True)
class PairedStream(SingleStream):
    """Base of designs whose state is a pair; what stands on one stream is made as pre-activation has it."""

    reversible: ClassVar[bool] = True
    group: ClassVar[int] = 1  # paired units come in groups of so many
    shortcut: ChangeOption = option("auto", "shortcut where shapes change; auto: the backbone's published one")

    @abstractmethod
    def open(self, x: Tensor) -> State:
        """The pair from one stream."""

    @abstractmethod
    def close(self, state: State) -> Tensor:
        """One stream from the pair."""

    @abstractmethod
    def pair_join(self, plan: UnitPlan, role: Role) -> Join:
        """How a unit reads and writes the pair."""

    def pair_tail(self) -> tuple[Op, ...]:
        """Operations that the join applies to the output of a branch."""
        return ()

    # ---- norms and activations

    def arrange(self, site: Site) -> Arrangement:
        """Before each weight, unless the stream already has them; none around single layers, which hold their own."""
        if site.block.style == "layer":
            return Arrangement()
        arrangement = pre_arrangement(site)
        ready = site.block.layout == "NCHW" and (site.first or self._shares(site))
        return replace(arrangement, start=()) if ready else arrangement

    def stream_parts(self, site: Site) -> tuple[Part, ...]:
        """The shared activation of a projecting unit."""
        return _activated(site) if self._shares(site) and not site.first else ()

    def on_shortcut(self, site: Site) -> tuple[Part, ...]:
        """Option A or B; a projection without norm."""
        return shortcut_parts(site, self.shortcut, norm=False)

    def entry_parts(self, site: Site) -> tuple[Part, ...]:
        """The first unit's activation on images, unless the stem brings it."""
        return _activated(site) if site.block.layout == "NCHW" and not site.activated else ()

    def exit_parts(self, site: Site) -> tuple[Part, ...]:
        """The activation behind the last addition; on tokens the norm."""
        return () if site.block.style == "layer" else pre_arrangement(site).start

    def _shares(self, site: Site) -> bool:
        return site.block.layout == "NCHW" and projects(site, self.shortcut)

    # ---- roles

    def plan(self, sites: Sequence[Site]) -> tuple[UnitPlan, ...]:
        """One unit a site.

        Raises:
            SkipwayError: a single unit, where nobody opens and closes the pair.
        """
        if len(sites) == 1 and not sites[0].first:
            raise SkipwayError(
                f"design {self.id!r} for a unit that stands alone: nobody opens and closes its two streams",
                "a whole stack", f'skipway.Stack(branches, "{self.id}")',
            )  # fmt: skip
        return tuple(self._in_role(site, role) for site, role in zip(sites, self._roles(sites), strict=True))

    def _roles(self, sites: Sequence[Site]) -> Iterator[Role]:
        """Units that keep the shape are paired, in whole groups; what is over stands before them on one stream."""
        places: list[int | None] = []
        for changes, run in itertools.groupby(sites, key=_changes_shape):
            count = len(list(run))
            over = count if changes else count % self.group
            places += [None] * over + list(range(count - over))
        opened = False
        for place in places:
            paired = place is not None
            yield Role(
                paired=paired, before="nothing" if paired == opened else "open" if paired else "close", place=place or 0
            )  # fmt: skip
            opened = paired

    def _in_role(self, site: Site, role: Role) -> UnitPlan:
        plan = self._unit(site)
        if not role.paired:
            return replace(plan, role=role, constant_state=plan.constant_state and role.before == "nothing")
        branch = plan.branches[0]

        def form(mode: Mode) -> UnitForm:
            return UnitForm(branch=branch.block.ops(branch.slots, mode) + self.pair_tail(), stream="pair")

        return replace(plan, role=role, forms=forms_by_mode(form), constant_state=role.before == "nothing")

    def join(self, plan: UnitPlan) -> Join:
        """That of the pair, or an addition on one stream."""
        role = plan.role
        return self.pair_join(plan, role) if role.paired else SingleJoin(plan.site, self)

    def transition(self, plan: UnitPlan) -> nn.Module | None:
        """Opens or closes the pair."""
        changes = {"open": self.open, "close": self.close}
        return Change(changes[plan.role.before]) if plan.role.before in changes else None

    def exit(self, plans: Sequence[UnitPlan]) -> nn.Module | None:
        """Closes the pair, then what follows the last addition."""
        if not plans[-1].role.paired:
            return super().exit(plans)
        site = plans[-1].site
        sequence = nn.Sequential()
        sequence.add_module("close", Change(self.close))
        add_parts(sequence, self.exit_parts(site), plans[-1].out_width, site.block.layout, fresh=False)
        return sequence

    def stream(self, state: State) -> Tensor:
        """The pair closed."""
        return state if isinstance(state, Tensor) else self.close(state)

    def extra_parameters(self, sites: Sequence[Site]) -> int | None:
        """Projections; the norms only change their places."""
        return sum(projection_parameters(site, self.shortcut, norm=False) for site in sites)


def _changes_shape(site: Site) -> bool:
    return site.changes_shape or site.given_shortcut is not None


def _activated(site: Site) -> tuple[Part, ...]:
    return site.norm.part() + activation(site.act)
