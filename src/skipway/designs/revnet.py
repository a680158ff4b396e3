"""Reversible blocks: each half of the state changes by what the other says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from skipway.designs._paired import PairedStream, Role
from skipway.designs._registry import register
from skipway.designs._seam import Branches, Claims, Inputs, Join, State, UnitPlan


class FirstCoupling(Join):
    """``y1 = x1 + F(x2)``: ([x1,x2],) to (y1, x2); [,] stands one behind the other along the batch."""

    def read(self, state: State, t: Tensor | None) -> tuple[Inputs, Any]:
        """The branch reads x2."""
        x1, x2 = state[0].tensor_split(2)
        return ((x2,),), (x1, x2)

    def write(self, carry: Any, outputs: tuple[Any, ...], t: Tensor | None) -> State:
        """x1 changes."""
        x1, x2 = carry
        return x1 + outputs[0], x2

    def inverse(self, state: State, branches: Branches, t: Tensor | None) -> State:
        """``x1 = y1 − F(x2)``."""
        y1, x2 = state
        return (torch.cat((y1 - branches[0](x2), x2)),)


class SecondCoupling(Join):
    """``y2 = x2 + G(y1)``: (y1, x2) to ([y1,y2],)."""

    def read(self, state: State, t: Tensor | None) -> tuple[Inputs, Any]:
        """The branch reads y1."""
        return ((state[0],),), state

    def write(self, carry: Any, outputs: tuple[Any, ...], t: Tensor | None) -> State:
        """x2 changes."""
        y1, x2 = carry
        return (torch.cat((y1, x2 + outputs[0])),)

    def inverse(self, state: State, branches: Branches, t: Tensor | None) -> State:
        """``x2 = y2 − G(y1)``."""
        y1, y2 = state[0].tensor_split(2)
        return y1, y2 - branches[0](y1)


@register(equation="y1 = x1 + F(x2), y2 = x2 + G(y1)", citation="Gomez et al. 2017, arXiv 1707.04585")
@dataclass(frozen=True, kw_only=True)
class Revnet(PairedStream):
    """Two streams, each changed by a branch that reads the other, so that inputs follow from outputs.

    ``y1 = x1 + F(x2)``, ``y2 = x2 + G(y1)``, and back ``x2 = y2 − G(y1)``, ``x1 = y1 − F(x2)``: with
    ``memory="reversible"`` no activations are kept inside a stage. F and G are pre-activation branches of two
    neighbouring units (attention and MLP in transformers). The paper's nets have twice the channels and split them;
    here each stream has the backbone's width, opened as two copies (Reformer, arXiv 2001.04451) and closed as their
    mean, which leaves every backbone its branches and parameters. A unit that changes the shape, and one that is over
    where their number is odd, is an ordinary pre-activation unit on one stream.
    """

    group: ClassVar[int] = 2

    def open(self, x: Tensor) -> State:
        """Two copies."""
        return (torch.cat((x, x)),)

    def close(self, state: State) -> Tensor:
        """The mean."""
        first, second = state[0].tensor_split(2) if len(state) == 1 else state
        mean: Tensor = (first + second) * 0.5
        return mean

    def pair_join(self, plan: UnitPlan, role: Role) -> Join:
        """F's or G's."""
        return SecondCoupling() if role.place % 2 else FirstCoupling()

    def claims(self) -> Claims:
        """Invertible but where the shape changes."""
        return Claims(
            identity_at_init=False,
            warm_up=False,
            parameters="A: none; B: c·c' where shapes change",
            note="inputs can be computed from outputs: memory=reversible keeps no activations inside a stage",
        )
