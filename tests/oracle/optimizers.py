"""One step of each optimiser written out, for float64; slow and obvious.

Each function takes weight, gradient and state, and returns the new weight and state.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["State", "adamw", "clipped", "sgd"]

State: TypeAlias = dict[str, Tensor]


def sgd(
    w: Tensor, g: Tensor, state: State, *, lr: float, decay: float, momentum: float, nesterov: bool
) -> tuple[Tensor, State]:
    """v ← μ v + (g + λ w), the first v being g + λ w itself; w ← w − η v, or w − η (g + λ w + μ v)."""
    g = g + decay * w
    v = momentum * state["v"] + g if state else g
    return w - lr * (g + momentum * v if nesterov else v), {"v": v}


def adamw(
    w: Tensor, g: Tensor, state: State, *, lr: float, decay: float, betas: tuple[float, float], eps: float
) -> tuple[Tensor, State]:
    """Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2."""
    first, second = betas
    t = int(state["t"]) + 1 if state else 1
    m = first * (state["m"] if state else 0) + (1 - first) * g
    v = second * (state["v"] if state else 0) + (1 - second) * g * g
    ahead = (m / (1 - first**t)) / ((v / (1 - second**t)).sqrt() + eps)
    return w - lr * decay * w - lr * ahead, {"t": torch.tensor(t), "m": m, "v": v}


def clipped(gradients: list[Tensor], most: float) -> tuple[list[Tensor], float]:
    """All gradients times one factor, so that their joint L2 norm is at most `most`; and that norm before."""
    norm = sum(float((g * g).sum()) for g in gradients) ** 0.5
    return [g * min(1.0, most / norm) for g in gradients], norm
