"""Momentum residual units: the branch pushes a velocity, the velocity moves the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skipway.designs._paired import PairedStream, Role
from skipway.designs._registry import option, register
from skipway.designs._seam import Branches, Claims, Inputs, Join, State, UnitPlan
from skipway.errors import SkipwayError
from skipway.form import Op


class MomentumJoin(Join):
    """``v' = γv + (1−γ)F(x)``, ``x' = x + v'``: (x, v) to (x', v').

    Args:
        gamma: γ.
        share: 1−γ.
    """

    def __init__(self, gamma: float, share: float) -> None:
        super().__init__()
        self.gamma, self.share = gamma, share
        self.growth = 1 / gamma

    def read(self, state: State, t: Tensor | None) -> tuple[Inputs, Any]:
        """The branch reads x."""
        return ((state[0],),), state

    def write(self, carry: Any, outputs: tuple[Any, ...], t: Tensor | None) -> State:
        """The velocity first."""
        x, v = carry
        v = self.gamma * v + self.share * outputs[0]
        return x + v, v

    def inverse(self, state: State, branches: Branches, t: Tensor | None) -> State:
        """``x = x' − v'``, ``v = (v' − (1−γ)F(x))/γ``."""
        x, v = state
        x = x - v
        return x, (v - self.share * branches[0](x)) / self.gamma

    def extra_repr(self) -> str:
        """The number."""
        return f"gamma={self.gamma}"


@register(equation="v' = γv + (1−γ)F(x), x' = x + v'", citation="Sander et al. 2021, arXiv 2102.07870")
@dataclass(frozen=True, kw_only=True)
class Momentum(PairedStream):
    """A second stream, the velocity, remembers what earlier branches said; inputs follow from outputs.

    ``v' = γv + (1−γ)F(x)``, ``x' = x + v'``, and back ``x = x' − v'``, ``v = (v' − (1−γ)F(x))/γ``, F a pre-activation
    branch. The velocity starts at zero, and again behind each unit that changes the shape, which is an ordinary
    pre-activation unit. Each step back multiplies what was rounded away by 1/γ.
    """

    gamma: float = option(0.9, "γ, how much of the velocity stays; above 0, below 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gamma < 1:
            raise SkipwayError(f"momentum with gamma={self.gamma}", "a number above 0 and below 1")

    @property
    def share(self) -> float:
        """1−γ as it is written down."""
        return round(1 - self.gamma, 12)

    def open(self, x: Tensor) -> State:
        """No velocity yet."""
        return x, torch.zeros_like(x)

    def close(self, state: State) -> Tensor:
        """The stream without its velocity."""
        x: Tensor = state[0]
        return x

    def pair_join(self, plan: UnitPlan, role: Role) -> Join:
        """One for each unit."""
        return MomentumJoin(self.gamma, self.share)

    def pair_tail(self) -> tuple[Op, ...]:
        """1−γ."""
        return (Op("scale", self.share),)

    def claims(self) -> Claims:
        """Invertible but where the shape changes."""
        return Claims(
            identity_at_init=False,
            warm_up=False,
            parameters="A: none; B: c·c' where shapes change",
            note="inputs can be computed from outputs; rounding errors grow by 1/γ a unit on the way back",
        )
