"""One residual unit: branches that know no skip, and a join that reads and writes the state.

Shapes: N batch, C channels, H and W image, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn

from skipway.blocks import Layout, Norm, OpaqueBlock
from skipway.blocks.rebuild import transformed
from skipway.blocks.slot import NormKind
from skipway.designs import Design, Join, Site, State, UnitPlan, design_from
from skipway.errors import SkipwayError
from skipway.form import UnitForm
from skipway.models.stream_format import in_fp32

__all__ = ["PlannedUnit", "Unit", "own_site"]


class PlannedUnit(nn.Module):
    """A unit built from its plan.

    Args:
        design: builds join and transition.
        plan: what stands here.

    Attributes:
        compiled: stands in for `through`; copies are without it.
        residual_in_fp32: whether the state behind the unit is float32 where autocast makes it narrower.
    """

    def __init__(self, design: Design, plan: UnitPlan) -> None:
        super().__init__()
        self.compiled: Callable[[PlannedUnit, State, Tensor | None], State] | None = None
        self.residual_in_fp32 = False
        self.plan, self.design = plan, design
        self.transition = design.transition(plan)
        self.branches = nn.ModuleList(branch.build() for branch in plan.branches)
        self.join: Join = design.join(plan)

    @property
    def form(self) -> UnitForm:
        """The unit as a formula, in the module's present mode."""
        return self.plan.forms["train" if self.training else "eval"]

    def forward(self, state: State, t: Tensor | None = None) -> State:
        """The state behind the unit.

        Args:
            state: before it; for designs with a single stream a tensor (N,C,H,W) or (…,D).
            t: training progress in [0, 1], 0-dimensional, or None.
        """
        # Inside of hooks, which are anybody's code: what a graph holds runs without them.
        run = self.compiled
        return self.through(state, t) if run is None or transformed() else run(self, state, t)

    def through(self, state: State, t: Tensor | None) -> State:
        """The state behind the unit, operation by operation."""
        if self.transition is not None:
            state = self.transition(state)
        inputs, carry = self.join.read(state, t)
        outputs = tuple(branch(*ports) for branch, ports in zip(self.branches, inputs, strict=True))
        behind = self.join.write(carry, outputs, t)
        return in_fp32(behind) if self.residual_in_fp32 else behind

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "compiled": None}  # type: ignore[no-untyped-call]  # of PyTorch

    def inverse(self, state: State, t: Tensor | None = None) -> State:
        """The state before the unit from the state behind it.

        Raises:
            SkipwayError: the design is not reversible.
        """
        return self.join.inverse(state, self.branches, t)


class Unit(PlannedUnit):
    """One residual unit around any branch, in anybody's model: x' = f( h(x) ⊕ s·F(x) ).

    What the design places around the branch comes from the design; what is inside the branch, also a norm at its
    end, is the branch's own. A unit that stands alone is neither first nor last: nothing opens or closes the stream
    (`Stack` does).

    Args:
        branch: F, (N,C,H,W) or (…,D) to the same layout.
        design: id with options, e.g. ``"preact"`` or ``"exclusive_gate(bias=-6)"``, or a `Design`.
        shortcut: a module to stand on the shortcut, for branches that change the shape.
        norm: ``"batch"``, ``"layer"``, ``"rms"`` or ``"none"``; None means batch on images, layer on tokens.
        act: ``"relu"``, ``"gelu"``, ``"silu"``, ``"tanh"`` or ``"none"``; None means ReLU on images, none on tokens.
        in_width: channels that the branch reads; None: found by a run without data, or read off its layers.
        out_width: channels that it writes; None: likewise.
        stride: by which it shrinks an image; None: likewise.
        layout: ``"NCHW"`` or ``"NTD"``; None: read off its layers.

    Raises:
        ShapeMismatchError: the branch changes the shape and nothing stands on the shortcut to match.
        SkipwayError: the branch's width cannot be seen; the design makes several units of one branch.
        UnknownNameError: unknown design, option, norm or activation.
    """

    def __init__(  # noqa: PLR0913  # all but the first two optional
        self,
        branch: nn.Module,
        design: str | Design = "preact",
        *,
        shortcut: nn.Module | None = None,
        norm: str | None = None,
        act: str | None = None,
        in_width: int | None = None,
        out_width: int | None = None,
        stride: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        block = OpaqueBlock.of(branch, in_width=in_width, out_width=out_width, stride=stride, layout=layout)
        chosen = design_from(design)
        plans = chosen.plan([own_site(block, shortcut=shortcut, norm=norm, act=act)])
        if len(plans) != 1:
            raise SkipwayError(f"design {chosen.id!r} makes {len(plans)} units of one branch", "skipway.Stack for it")
        super().__init__(chosen, plans[0])
        chosen.init_([self])


def own_site(
    block: OpaqueBlock,
    *,
    shortcut: nn.Module | None,
    norm: str | None,
    act: str | None,
    index: int = 0,
    count: int = 1,
    first: bool = False,
    last: bool = False,
) -> Site:
    """A site for anybody's branch."""
    images = block.layout == "NCHW"
    return Site(
        block=block,
        norm=named_norm(norm if norm is not None else "batch" if images else "layer"),
        norm_named=norm is not None,
        act=act if act is not None else "relu" if images else "none",
        given_shortcut=shortcut,
        index=index,
        count=count,
        first=first,
        last=last,
    )


def named_norm(name: str) -> Norm:
    """A norm by name.

    Raises:
        UnknownNameError: no such norm.
    """
    return Norm(kind=cast("NormKind", name))
