"""Units whose inputs follow from their outputs: nothing is kept inside a run of them.

The backward pass starts from the state behind the run. Unit by unit it computes the branches again, once each, and
from them both the state before the unit and the gradients.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.checkpoint import get_device_states, set_device_states

from skipway.blocks.again import Autocast, refuse_second_gradient
from skipway.designs import DESIGNS, Design, State
from skipway.errors import SkipwayError
from skipway.models.checkpointed import untracked
from skipway.models.unit import PlannedUnit

__all__ = ["Drift", "check_reversible", "is_reversible", "reversed_through", "reversible_runs"]

# Relative deviations of the state before a run. In bfloat16, gradients were 18 % off those of "keep" with 1 % (RevNet,
# 56 layers), 39 % with 9 % (110 layers): from a quarter on there is little left of them.
_WORD: Final = 0.01
_NOISE: Final = 0.25
_SAMPLES: Final = 64
# By so much a run may multiply rounding errors on the way back: with momentum 0.9 the state of every 43rd unit is kept.
_GROWTH: Final = 100.0
# Looking at a number of another device waits for it: there only so many times, and then now and again.
_FIRST: Final = 3
_AGAIN: Final = 100


def is_reversible(unit: PlannedUnit) -> bool:
    """Whether a unit's input follows from its output; where it changes the kind of state before, it does not."""
    return unit.join.reversible and unit.transition is None


def reversible_runs(units: Iterable[PlannedUnit], taps: Collection[int]) -> Iterator[tuple[int, int]]:
    """First unit of each run of reversible ones and the one behind its last; the others are runs of one.

    A run also ends where the way back would multiply rounding errors by more than a hundred.

    Args:
        units: in order of execution.
        taps: indices of units behind which the state is kept anyway.
    """
    start, goes_on, count, growth = 0, False, 0, 1.0
    for count, unit in enumerate(units, 1):
        here = is_reversible(unit)
        growth *= unit.join.growth if here else 1.0
        if start < count - 1 and not (goes_on and here and growth <= _GROWTH):
            yield start, count - 1
            start, growth = count - 1, unit.join.growth if here else 1.0
        goes_on = here and count - 1 not in taps
    if start < count:
        yield start, count


def check_reversible(design: Design) -> None:
    """Raise if ``memory="reversible"`` asks for what the design has not.

    Raises:
        SkipwayError: the design has no inverse.
    """
    if not design.reversible:
        having = ", ".join(sorted(id_ for id_, other in DESIGNS.items() if other.reversible))
        raise SkipwayError(
            f'memory="reversible" with design {design.id!r}, whose inputs do not follow from its outputs',
            f"one of the designs that have an inverse: {having}",
            'memory="checkpoint" or "recompute", which every design has',
        )


@dataclass
class Drift:
    """How far states that were computed backwards are from those of the forward pass, in a sample of their numbers.

    Args:
        largest: relative deviation (Euclidean norm), dimensionless; of all that was looked at.
        silent: whether to note it only.
        looks: how often a look was due.
    """

    largest: float = 0.0
    silent: bool = False
    looks: int = field(default=0, repr=False, compare=False)

    @property
    def exact(self) -> bool:
        """Whether gradients do not suffer."""
        return self.largest <= _WORD

    def due(self, device: torch.device) -> bool:
        """Whether to look this time."""
        self.looks += 1
        return device.type == "cpu" or self.looks <= _FIRST or self.looks % _AGAIN == 0

    def seen(self, before: Sequence[Tensor], again: Sequence[Tensor]) -> None:
        """Compare samples.

        Raises:
            SkipwayError: the state that came back is another one.
        """
        kept, back = (torch.cat([t.double() for t in tensors]) for tensors in (before, again))
        size = float(kept.norm())
        deviation = float((back - kept).norm()) / (size or 1.0)
        if not size < math.inf:
            return  # the forward pass itself has left the numbers
        deviation = math.inf if math.isnan(deviation) else deviation  # not a number
        advice = 'set_memory("checkpoint"), or a float32 stream: residual_in_fp32=True under autocast'
        if deviation > _NOISE and not self.silent:
            raise SkipwayError(
                f'memory="reversible": the state before a run of units comes back {deviation:.2g} off (relative), so '
                "that gradients would be noise",
                f"a deviation below {_NOISE}, better below {_WORD}", advice,
            )  # fmt: skip
        if deviation > _WORD >= self.largest and not self.silent:
            text = f"the state before a run of units comes back {deviation:.2g} off (relative); gradients suffer"
            warnings.warn(f'memory="reversible": {text}; try {advice}', stacklevel=2)
        self.largest = max(self.largest, deviation)


def reversed_through(units: Sequence[PlannedUnit], state: State, progress: Tensor | None, drift: Drift) -> State:
    """The state behind reversible units, of which only that is kept.

    Args:
        units: in order of execution, each of them reversible.
        state: before the first.
        progress: as `PlannedUnit.forward` takes it.
        drift: where deviations are noted.

    Raises:
        SkipwayError: parameters are spread over ranks.
    """
    leaves, before = tree_flatten(state)
    run = _Run(units=units, progress=progress, before=before, drift=drift)
    if any(hasattr(p, "device_mesh") for p in run.parameters):
        raise SkipwayError(
            'memory="reversible" with parameters that are spread over ranks (FSDP): they are gone on the way back',
            "each rank with all parameters (ddp), or another mode", 'set_memory("checkpoint")',
        )  # fmt: skip
    out = _Reversed.apply(run, len(leaves), *leaves, *run.parameters)
    assert run.behind is not None
    return tree_unflatten(list(out), run.behind)


@dataclass(kw_only=True, eq=False)
class _Run:
    """One pass through reversible units: what its way back needs beside the last state."""

    units: Sequence[PlannedUnit]
    progress: Tensor | None
    before: TreeSpec
    drift: Drift
    behind: TreeSpec | None = None
    random: list[_Random | None] = field(default_factory=list)
    sample: list[Tensor] = field(default_factory=list)
    autocast: Autocast = Autocast("cpu", torch.bfloat16, enabled=False)
    parameters: list[nn.Parameter] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Each once, though units may share them.
        own = {id(p): p for unit in self.units for p in unit.parameters() if p.requires_grad}
        self.parameters = list(own.values())

    def forward(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Through the units; notes random states where a unit draws numbers."""
        device = leaves[0].device
        self.autocast = Autocast.now(device)
        self.sample = [_sample(leaf) for leaf in leaves] if self.drift.due(device) else []
        state = tree_unflatten(list(leaves), self.before)
        now = _Random.now(leaves)
        with self.autocast.again():
            for unit in self.units:
                state = unit(state, self.progress)
                then = _Random.now(leaves)
                self.random.append(None if then.same(now) else now)
                now = then
        out, self.behind = tree_flatten(state)
        return out

    def backward(
        self, leaves: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> tuple[Sequence[Tensor | None], list[Tensor | None]]:
        """Gradients at the state before the units, and at `parameters`."""
        assert self.behind is not None
        way = _WayBack(tree_unflatten(list(leaves), self.behind), grads, self.progress)
        with untracked(*self.units), self.autocast.again():
            for unit, random in zip(reversed(self.units), reversed(self.random), strict=True):
                with nullcontext() if random is None else random.again():
                    way.through(unit)
        if self.sample:
            self.drift.seen(self.sample, [_sample(leaf) for leaf in tree_leaves(way.state)])
        return way.grads, [way.found.get(id(p)) for p in self.parameters]


class _Reversed(torch.autograd.Function):
    """A run of reversible units."""

    @staticmethod
    def forward(ctx: Any, run: _Run, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The state behind the units, which is all that is kept."""
        out = run.forward(tensors[:count])
        ctx.run, ctx.behind = run, len(out)
        # Parameters are kept as every layer keeps its own: a change before the backward pass is noticed.
        ctx.save_for_backward(*out, *tensors[count:])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """From the last unit to the first."""
        refuse_second_gradient("reversible")
        state_grads, parameter_grads = ctx.run.backward(ctx.saved_tensors[: ctx.behind], grads)
        return None, None, *state_grads, *parameter_grads


class _Again:
    """A branch that is run with gradients, on inputs of its own.

    Args:
        branch: to run once.
    """

    def __init__(self, branch: nn.Module) -> None:
        self.branch = branch
        self.ports: tuple[Tensor, ...] = ()
        self.outputs: Any = None

    def __call__(self, *ports: Tensor) -> Any:
        """What the branch returns, without its graph."""
        self.ports = tuple(port.detach().requires_grad_() for port in ports)
        with torch.enable_grad():
            self.outputs = self.branch(*self.ports)
        return tree_map(lambda out: out.detach() if isinstance(out, Tensor) else out, self.outputs)


class _WayBack:
    """From the state behind a unit to the one before it, with the gradients there.

    Args:
        state: behind the last unit.
        grads: of its tensors.
        t: training progress.
    """

    def __init__(self, state: State, grads: Sequence[Tensor | None], t: Tensor | None) -> None:
        self.state, self.grads, self.t = state, grads, t
        self.found: dict[int, Tensor] = {}
        """Gradients of parameters, by their identity."""

    def through(self, unit: PlannedUnit) -> None:
        """One unit back."""
        branches = [_Again(branch) for branch in unit.branches]
        with torch.no_grad():
            self.state = unit.join.inverse(self.state, branches, self.t)
        leaves, form = tree_flatten(self.state)
        leaves = [_leaf(leaf) for leaf in leaves]
        with torch.enable_grad():
            inputs, carry = unit.join.read(tree_unflatten(leaves, form), self.t)
            # What is read and what is written are differentiated one after the other: each graph goes as it is used.
            carried = tree_map(_leaf, carry)
            outputs = tuple(branch.outputs for branch in branches)
            behind = [get_gradient_edge(leaf) for leaf in tree_leaves(unit.join.write(carried, outputs, self.t))]
        starts = [port for branch in branches for port in branch.ports] + _tensors(carried)
        del branches, outputs, carried
        own = [p for p in unit.parameters() if p.requires_grad]
        grads, self.grads = self.grads, ()
        written = _gradients(behind, grads, [*starts, *own])
        joined = [p for p in unit.join.parameters() if p.requires_grad]
        reads = [get_gradient_edge(leaf) if leaf.requires_grad else None for leaf in _tensors((inputs, carry))]
        read = _gradients(reads, written[: len(starts)], [*leaves, *joined])
        self.grads = read[: len(leaves)]
        for p, grad in zip((*own, *joined), (*written[len(starts) :], *read[len(leaves) :]), strict=True):
            if grad is not None:
                self.found[id(p)] = self.found[id(p)] + grad if id(p) in self.found else grad


def _tensors(tree: Any) -> list[Tensor]:
    """Those that gradients may come to."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _leaf(value: Any) -> Any:
    """A start of a graph of its own, with the same numbers."""
    return value.detach().requires_grad_() if isinstance(value, Tensor) and value.is_floating_point() else value


def _gradients(
    edges: Sequence[GradientEdge | None], grads: Sequence[Tensor | None], at: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients at some tensors, None where nothing comes to them."""
    pairs = [(edge, grad) for edge, grad in zip(edges, grads, strict=True) if grad is not None and edge is not None]
    if not pairs:
        return [None] * len(at)
    return list(torch.autograd.grad([edge for edge, _ in pairs], at, [grad for _, grad in pairs], allow_unused=True))


@dataclass(frozen=True)
class _Random:
    """States of the random generators of the processor and of the devices of some tensors."""

    cpu: Tensor
    kind: str
    devices: tuple[int, ...]
    states: tuple[Tensor, ...]

    @classmethod
    def now(cls, tensors: Sequence[Tensor]) -> _Random:
        """As they are."""
        devices, states = get_device_states(tensors[0])
        return cls(torch.get_rng_state(), tensors[0].device.type, tuple(devices), tuple(states))

    def same(self, other: _Random) -> bool:
        """Whether nothing was drawn between the two."""
        pairs = zip((self.cpu, *self.states), (other.cpu, *other.states), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within it they are as they were."""
        kind = "cuda" if self.kind == "cpu" else self.kind
        with torch.random.fork_rng(self.devices, device_type=kind):
            torch.set_rng_state(self.cpu)
            set_device_states(list(self.devices), list(self.states), device_type=kind)
            yield


def _sample(leaf: Tensor) -> Tensor:
    """Some numbers of a tensor, always from the same places."""
    places = torch.linspace(0, leaf.numel() - 1, min(_SAMPLES, leaf.numel()), device=leaf.device).long()
    return leaf.detach()[torch.unravel_index(places, leaf.shape)]
