"""The gradient by path length from ordinary backward passes alone, by interpolating a polynomial.

Where every branch hands back t times its gradient, the gradient is ``G(t) = Σ_k t^k g_k``: a polynomial whose
coefficients are the parts that passed k branches. L + 1 values of t determine them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["hand_back", "parts_by_interpolation"]


def hand_back(branch: Tensor, share: float) -> Tensor:
    """The same values; the gradient that goes back is `share` times as large."""
    return branch.detach() + share * (branch - branch.detach())


def parts_by_interpolation(gradient: Callable[[float], Tensor], units: int) -> Tensor:
    """The coefficients, (L + 1, …), from the gradient at L + 1 Chebyshev points.

    Args:
        gradient: the gradient when every branch hands back that share of its own.
        units: L.
    """
    points = np.cos(np.pi * (np.arange(units + 1) + 0.5) / (units + 1))
    inverse = torch.tensor(np.linalg.inv(np.vander(points, increasing=True)))
    return torch.einsum("kp,p...->k...", inverse, torch.stack([gradient(float(t)) for t in points]))
