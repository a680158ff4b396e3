"""A whole stream: entry, units, exit. This file holds the only loop over depth.

Shapes: N batch, C channels, H and W image, T tokens, D width, L units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from skipway.blocks import Layout, OpaqueBlock, Rebuilding
from skipway.blocks.rebuild import watched
from skipway.designs import Design, Site, State, design_from
from skipway.errors import SkipwayError, UnknownNameError
from skipway.models.checkpointed import best_segment, checkpointed, planned_sizes
from skipway.models.compiled import compile_units
from skipway.models.reversible import Drift, check_reversible, is_reversible, reversed_through, reversible_runs
from skipway.models.stream_format import in_fp32
from skipway.models.unit import PlannedUnit, own_site
from skipway.spec import MEMORY_MODES, Memory

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
        self.memory = MEMORY_MODES[0]
        self.drift = Drift()
        self.entry = design.entry(plans)
        self.units = nn.ModuleList(PlannedUnit(design, plan) for plan in plans)
        self.exit = design.exit(plans)
        self.set_residual_in_fp32(None)
        self.progress: Tensor | None
        if design.uses_progress:
            # Set by the training loop; a tensor, since a number would recompile at each step.
            self.register_buffer("progress", torch.ones(()), persistent=False)
        else:
            self.progress = None

    def built_units(self) -> list[PlannedUnit]:
        """The units in order of execution."""
        return [unit for unit in self.units if isinstance(unit, PlannedUnit)]

    def first(self, count: int) -> PlannedStack:
        """The first units as a stack that ends with the last of them: no exit, whose parameters nothing would read.

        Args:
            count: of units, which both stacks share, and the entry with them.
        """
        part = PlannedStack.__new__(PlannedStack)
        nn.Module.__init__(part)
        part.training = self.training
        part.design, part.memory, part.drift = self.design, self.memory, Drift()
        part.entry, part.exit = self.entry, None
        part.units = nn.ModuleList(self.built_units()[:count])
        part.out_width = part.built_units()[-1].plan.out_width
        part.residual_in_fp32 = self.residual_in_fp32
        part.register_buffer("progress", self.progress, persistent=False)
        return part

    @cached_property
    def segment(self) -> int:
        """Units that are run again at a time with ``memory="checkpoint"``: chosen when first asked for."""
        return best_segment(*planned_sizes([unit.plan for unit in self.built_units()]))

    @property
    def memory_modes(self) -> tuple[Memory, ...]:
        """The modes that the design has, from the fastest to the smallest."""
        return tuple(mode for mode in MEMORY_MODES if mode != "reversible" or self.design.reversible)

    def set_memory(self, mode: str) -> None:
        """How activations are dealt with between forward and backward pass.

        Args:
            mode: ``"keep"`` them; ``"recompute"`` what weight layers read from what the norms before them read;
                ``"checkpoint"``: keep what every `segment`-th unit reads, and run the units again; ``"reversible"``:
                keep the state behind each run of units that can be inverted, and what the others read.

        Raises:
            UnknownNameError: another word.
            SkipwayError: ``"reversible"`` with a design that has no inverse.
        """
        if mode not in MEMORY_MODES:
            raise UnknownNameError("memory", mode, MEMORY_MODES)
        if mode == "reversible":
            check_reversible(self.design)
        self.memory = mode
        for module in self.modules():
            if isinstance(module, Rebuilding):
                module.rebuild = mode == "recompute"

    def set_residual_in_fp32(self, enable: bool | None = True) -> None:
        """Under autocast, keep the stream in float32 while branches run in 16 bits: x' = x + F(x), rounded once less.

        A convolutional stem gives 16 bits, and so is every sum behind it; here they are float32, for twice the memory
        of the stream. Streams of tokens are float32 under autocast anyway, as embeddings and layer norms are. What
        weights on a shortcut write has 16 bits all the same. Without autocast nothing changes.

        Args:
            enable: False: as autocast has it; None: with designs that are reversible, whose states would not come back.
        """
        self.residual_in_fp32 = self.design.reversible if enable is None else enable
        for unit in self.built_units():
            unit.residual_in_fp32 = self.residual_in_fp32

    def compile_units(
        self, *, backend: Any = "inductor", mode: str | None = None, dynamic: bool | None = None, fullgraph: bool = True
    ) -> int:
        """Compile the units in place, one graph for each kind, at their first call; names and weights stay.

        A kind are the units that differ in the values of their weights only. Each has a graph for each way it is
        called: train and eval mode, with and without gradients, number formats. Hooks on units and on what holds them
        run as ever; those on modules within a unit have to be there before the first call. Copies are not compiled.
        What a graph keeps for its backward pass is the compiler's choice: ``memory="recompute"`` keeps no less then,
        ``"checkpoint"`` does.

        Args:
            backend: as for `torch.compile`, and so are the others.
            mode: of inductor.
            dynamic: None: the first batch size has a graph of its own, the second makes one for all; False: each has
                its own; True: one for all from the start.
            fullgraph: whether to raise where a graph would be left, or be compiled more than PyTorch's limit of times;
                else that runs eagerly.

        Returns:
            The number of kinds.

        Raises:
            SkipwayError: no unit keeps the shape of the state, so that no two are of a kind.
        """
        return compile_units(self.built_units(), backend=backend, mode=mode, dynamic=dynamic, fullgraph=fullgraph)

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
        if self.residual_in_fp32:
            state = in_fp32(state)
        if (ends := self._ends(taps)) is not None:
            built = self.built_units()
            for start, stop in ends:
                units = built[start:stop]
                if self.memory == "reversible" and is_reversible(units[0]):
                    state = reversed_through(units, state, self.progress, self.drift)
                else:
                    state = checkpointed(partial(self._through, start, stop), units, state, self.progress)
                if stop - 1 in taps:
                    features.append(self.design.stream(state))
        else:
            for index, unit in enumerate(self.units):
                state = unit(state, self.progress)
                if index in taps:
                    features.append(self.design.stream(state))
        out: Tensor = state if self.exit is None else self.exit(state)
        return out, features

    def _ends(self, taps: Collection[int]) -> Iterator[tuple[int, int]] | None:
        """Which units run together with only the state between them kept; None: all is kept."""
        if not torch.is_grad_enabled():
            return None
        if self.memory == "reversible" and not watched():
            return reversible_runs(self.built_units(), taps)
        return self._segments(taps) if self.memory == "checkpoint" else None

    def _segments(self, taps: Collection[int]) -> Iterator[tuple[int, int]]:
        """First unit of each segment and the one behind its last; a stream that is tapped is kept anyway."""
        start, last = 0, len(self.units) - 1
        for index in range(len(self.units)):
            if index == last or index in taps or index + 1 - start == self.segment:
                yield start, index + 1
                start = index + 1

    def _through(self, start: int, stop: int, state: State, progress: Tensor | None) -> State:
        for unit in self.units[start:stop]:
            state = unit(state, progress)
        return state


class Stack(PlannedStack):
    """Anybody's branches as a stack of residual units, opened, closed and initialised as the design says.

    Args:
        branches: F of each unit in order of execution, (N,C,H,W) or (…,D).
        design: id with options, e.g. ``"pre_norm"``, or a `Design`.
        shortcuts: modules for the shortcuts of branches that change the shape, by index.
        norm: as for `Unit`.
        act: as for `Unit`.
        in_width: channels that a branch reads where its own code does not tell; the first branch has to read them.
        out_width: channels that a branch writes where its own code does not tell.
        layout: ``"NCHW"`` or ``"NTD"``, of all branches; None: read off the layers of each.

    Raises:
        SkipwayError: no branch; a branch whose width cannot be seen; a first branch that does not read `in_width`.
        ShapeMismatchError: a branch changes the shape and nothing stands on the shortcut to match.
        UnknownNameError: unknown design, option, norm or activation.
    """

    def __init__(  # all but the first two optional
        self,
        branches: Iterable[nn.Module],
        design: str | Design = "pre_norm",
        *,
        shortcuts: dict[int, nn.Module] | None = None,
        norm: str | None = None,
        act: str | None = None,
        in_width: int | None = None,
        out_width: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        usual = (in_width, out_width)
        blocks = [OpaqueBlock.of(branch, layout=layout, usual=usual) for branch in branches]
        if not blocks:
            raise SkipwayError("a stack of no branches", "at least one")
        if in_width not in (None, blocks[0].in_width):
            raise SkipwayError(
                f"in_width={in_width} and a first branch that reads {blocks[0].in_width} channels",
                "what the first branch reads",
                f"in_width={blocks[0].in_width}",
            )
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
