"""The seam between a residual design and everything else.

A *state* (any pytree of tensors) is opened once from the stem's output, read by each unit's branches, written with
their outputs, changed at a stage transition, and closed once before the head:

    state = entry(stem(x))
    for each unit:
        state = transition(state)
        inputs, carry = join.read(state, t)
        state = join.write(carry, F(inputs), t)
    head(exit(state))

One tensor as state covers plain, post- and pre-activation, highway, scaled; a pair covers reversible and two-stream
designs; n streams cover hyper-connections; a tuple of past outputs covers attention residuals. A design is a frozen
record of options: it plans without tensors, and builds modules from the plan.

`t` is the training progress, a 0-dimensional tensor in [0, 1] (a Python float would recompile), or None. Branches are
pure and may be executed again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from skipway.blocks import Block, Mode, Norm, Slots
from skipway.blocks.slot import MODES
from skipway.designs._options import check_options
from skipway.errors import SkipwayError
from skipway.form import UnitForm
from skipway.spec import OptimizerSpec

__all__ = [
    "BranchPlan", "Branches", "Claims", "Design", "Inputs", "Join", "ParameterRule", "Site", "State", "UnitLike",
    "UnitPlan",
]  # fmt: skip

State: TypeAlias = Any  # any pytree of tensors
Inputs: TypeAlias = tuple[tuple[Tensor, ...], ...]  # for each branch, one tensor for each of its ports


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place for a unit in a backbone, before any design is chosen.

    Args:
        block: the branch to stand there.
        index: position among all sites, from 0.
        count: number of sites.
        stage: number of the stage, from 0.
        first: whether it is the first unit of the net (a single `Unit` is neither first nor last).
        last: whether it is the last unit of the net.
        norm: the backbone's norm.
        norm_named: whether the norm was named by whoever builds the unit, so that no design may choose another.
        act: the backbone's activation.
        shortcut: the backbone's published shortcut where shapes change: ``"A"``, ``"B"``, or ``""`` for none.
        given_shortcut: a module of the user's own to stand on the shortcut.
        activated: whether the stem has already normalised and activated the stream.
        cut: whether a shortcut without weights may cut channels off where the branch has fewer.
        growth: channels that a concatenating design adds; 0 leaves it to the design.
    """

    block: Block
    index: int = 0
    count: int = 1
    stage: int = 0
    first: bool = False
    last: bool = False
    norm: Norm = Norm()
    norm_named: bool = False
    act: str = "relu"
    shortcut: str = ""
    given_shortcut: nn.Module | None = None
    activated: bool = False
    cut: bool = False
    growth: int = 0

    @property
    def changes_shape(self) -> bool:
        """Whether the branch's output differs in shape from its input."""
        return self.block.stride != 1 or self.block.in_width != self.block.out_width


@dataclass(frozen=True, kw_only=True)
class BranchPlan:
    """A block with its slots filled."""

    block: Block
    slots: Slots = field(default_factory=dict)

    def build(self) -> nn.Module:
        """The branch."""
        return self.block.build(self.slots)


@dataclass(frozen=True, kw_only=True)
class UnitPlan:
    """What a design puts at a site; no tensors.

    Args:
        site: where.
        branches: the branches, nearly always one.
        forms: the unit's form by mode, ``"train"`` and ``"eval"``.
        in_width: channels of the stream before the unit.
        out_width: channels of the stream behind it.
        constant_state: whether the state keeps its shapes through the unit.
        role: what the unit is among its neighbours, in the design's own terms.
    """

    site: Site
    branches: tuple[BranchPlan, ...]
    forms: Mapping[Mode, UnitForm]
    in_width: int
    out_width: int
    constant_state: bool
    role: Any = None


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What is said of a design and checked by the contract test.

    Args:
        identity_at_init: each unit that keeps its shape is the identity (on non-negative input where a ReLU follows).
        warm_up: whether deep nets need a learning-rate warm-up.
        parameters: extra parameters in words.
        note: anything else worth knowing.
    """

    identity_at_init: bool
    warm_up: bool
    parameters: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class ParameterRule:
    """Multipliers on the base optimiser values for some parameters; all dimensionless."""

    parameters: tuple[nn.Parameter, ...]
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


class Branches(Protocol):
    """Branches by number, as a `ModuleList` holds them."""

    def __getitem__(self, index: int, /) -> Callable[..., Any]: ...


class Join(nn.Module):
    """How one unit reads the state and writes it."""

    growth: float = 1.0
    """By what `inverse` multiplies an error of the state behind, at the least."""

    def read(self, state: State, t: Tensor | None) -> tuple[Inputs, Any]:
        """Take from the state what the branches read, and what `write` will need.

        Args:
            state: the design's state.
            t: training progress in [0, 1], or None.

        Returns:
            Inputs, for each branch a tuple with a tensor for each port; and the carry.
        """
        raise NotImplementedError

    def write(self, carry: Any, outputs: tuple[Any, ...], t: Tensor | None) -> State:
        """Make the next state.

        Args:
            carry: from `read`.
            outputs: what each branch returned.
            t: training progress in [0, 1], or None.
        """
        raise NotImplementedError

    def inverse(self, state: State, branches: Branches, t: Tensor | None) -> State:
        """The state before the unit from the state behind it; reversible designs only.

        Each branch is called once, on what `read` would give it; neither `read` nor `write` draws random numbers.

        Args:
            state: behind the unit.
            branches: those of the unit.
            t: training progress in [0, 1], or None.

        Raises:
            SkipwayError: the design is not reversible.
        """
        raise SkipwayError(f"{type(self).__name__} is not reversible", "a design with a state of two streams")

    @property
    def reversible(self) -> bool:
        """Whether it has an inverse."""
        return type(self).inverse is not Join.inverse

    def init_(self, rng: torch.Generator | None) -> None:
        """Initialise the join's own parameters, after those of the whole net were."""


class UnitLike(Protocol):
    """What a design sees of a built unit."""

    plan: UnitPlan
    join: Join
    branches: nn.ModuleList

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...


@dataclass(frozen=True, kw_only=True)
class Design(ABC):
    """A residual design: a frozen record of its options, with the rules to plan and build units."""

    id: ClassVar[str] = ""
    equation: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    uses_progress: ClassVar[bool] = False
    reversible: ClassVar[bool] = False  # whether joins have an inverse wherever the state keeps its shapes

    def __post_init__(self) -> None:
        check_options(self)

    @abstractmethod
    def plan(self, sites: Sequence[Site]) -> tuple[UnitPlan, ...]:
        """Plan every unit; a design may make several units of one site, or one of several."""

    @abstractmethod
    def join(self, plan: UnitPlan) -> Join:
        """The module that reads and writes the state at one unit."""

    @abstractmethod
    def claims(self) -> Claims:
        """What is said of the design with these options."""

    def extra_parameters(self, sites: Sequence[Site]) -> int | None:
        """Parameters beyond the plain net on the same sites; None where the branches themselves differ."""
        return None

    def entry(self, plans: Sequence[UnitPlan]) -> nn.Module | None:
        """Opens the state from the stem's output; None if that already is the state."""
        return None

    def exit(self, plans: Sequence[UnitPlan]) -> nn.Module | None:
        """Closes the state to the tensor that the head reads; None if it already is that."""
        return None

    def transition(self, plan: UnitPlan) -> nn.Module | None:
        """Changes the state before a unit, at a change of stage; None if nothing does."""
        return None

    def stream(self, state: State) -> Tensor:
        """The tensor that stands for the stream at any place, for feature maps.

        Raises:
            SkipwayError: the state is not a single tensor and the design does not say which it is.
        """
        if not isinstance(state, Tensor):
            raise SkipwayError(f"design {self.id!r} keeps a state of several tensors", "a design that names its stream")
        return state

    def init_(self, units: Sequence[UnitLike], rng: torch.Generator | None = None) -> None:
        """Initialise what the design owns or rescales, after the net's own initialisation."""
        for unit in units:
            unit.join.init_(rng)

    def init_head_(self, head: nn.Module, rng: torch.Generator | None = None) -> None:  # noqa: B027  # optional
        """Initialise the head where the design says how."""

    def param_groups(self, units: Sequence[UnitLike], optimizer: OptimizerSpec) -> list[ParameterRule]:
        """Multipliers for parameters of the units; those not named keep the base values."""
        return []

    def after_step_(self, units: Sequence[UnitLike]) -> None:  # noqa: B027  # optional
        """What is done to the weights after each optimiser step."""


def forms_by_mode(make: Any) -> dict[Mode, UnitForm]:
    """`make(mode)` for each mode."""
    return {mode: make(mode) for mode in MODES}
