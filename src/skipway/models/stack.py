"""A whole stream: entry, units, exit. This file holds the only loop over depth.

Shapes: N batch, C channels, H and W image, T tokens, D width, L units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, nn

from skipway.blocks import OpaqueBlock
from skipway.designs import Design, Site, design_from
from skipway.errors import SkipwayError
from skipway.models.recompute import recomputed
from skipway.models.unit import PlannedUnit, own_site

__all__ = ["PlannedStack", "Stack"]


class PlannedStack(nn.Module):
    """Units of one design on given sites; cost grows linearly with their number.

    Args:
        design: what stands at each site.
        sites: in order of execution, at least one.
    """

    def __init__(self, design: Design, sites: Sequence[Site]) -> None:
        super().__init__()
        plans = design.plan(sites)
        self.design = design
        self.out_width = plans[-1].out_width
        self.recompute = False
        self.entry = design.entry(plans)
        self.units = nn.ModuleList(PlannedUnit(design, plan) for plan in plans)
        self.exit = design.exit(plans)
        self.progress: Tensor | None
        if design.uses_progress:
            # Set by the training loop; a tensor, since a number would recompile at each step.
            self.register_buffer("progress", torch.ones(()), persistent=False)
        else:
            self.progress = None

    def built_units(self) -> list[PlannedUnit]:
        """The units in order of execution."""
        return [unit for unit in self.units if isinstance(unit, PlannedUnit)]

    def forward(self, x: Tensor) -> Tensor:
        """(N,C,H,W) or (…,D) from the stem to what the head reads."""
        return self.run(x)[0]

    def run(self, x: Tensor, taps: Collection[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """As `forward`, with the stream behind some units.

        Args:
            x: (N,C,H,W) or (…,D).
            taps: indices of units.

        Returns:
            The output, and the stream behind each tapped unit in order of execution.
        """
        features: list[Tensor] = []
        state = x if self.entry is None else self.entry(x)
        again = self.recompute and torch.is_grad_enabled()
        for index, unit in enumerate(self.units):
            state = recomputed(unit, state, self.progress) if again else unit(state, self.progress)
            if index in taps:
                features.append(self.design.stream(state))
        out: Tensor = state if self.exit is None else self.exit(state)
        return out, features


class Stack(PlannedStack):
    """Anybody's branches as a stack of residual units, opened, closed and initialised as the design says.

    Args:
        branches: F of each unit in order of execution, (N,C,H,W) or (…,D).
        design: id with options, e.g. ``"pre_norm"``, or a `Design`.
        shortcuts: modules for the shortcuts of branches that change the shape, by index.
        norm: as for `Unit`.
        act: as for `Unit`.

    Raises:
        SkipwayError: no branch; a branch whose width cannot be seen.
        ShapeMismatchError: a branch changes the shape and nothing stands on the shortcut to match.
        UnknownNameError: unknown design, option, norm or activation.
    """

    def __init__(
        self,
        branches: Iterable[nn.Module],
        design: str | Design = "pre_norm",
        *,
        shortcuts: dict[int, nn.Module] | None = None,
        norm: str | None = None,
        act: str | None = None,
    ) -> None:
        blocks = [OpaqueBlock.of(branch) for branch in branches]
        if not blocks:
            raise SkipwayError("a stack of no branches", "at least one")
        given = shortcuts or {}
        last = len(blocks) - 1
        if wrong := [index for index in given if not 0 <= index <= last]:
            raise SkipwayError(f"shortcuts for units {wrong} of a stack of {last + 1}", f"indices from 0 to {last}")
        sites = [
            own_site(
                block, shortcut=given.get(i), norm=norm, act=act, index=i, count=last + 1, first=i == 0, last=i == last
            )
            for i, block in enumerate(blocks)
        ]
        super().__init__(design_from(design), sites)
        self.design.init_(self.built_units())
