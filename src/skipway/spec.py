"""Frozen records of what is asked for; no tensors here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from skipway.errors import SkipwayError

__all__ = ["OptimizerSpec"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimiser and its base values, which a design may multiply per group of parameters.

    Args:
        name: ``"sgd"``, ``"adamw"`` …
        lr: learning rate, dimensionless.
        weight_decay: decoupled for AdamW, L2 for SGD.
        momentum: of SGD.
        betas: of Adam.
        eps: of Adam.
    """

    name: str = "sgd"
    lr: float = 0.1
    weight_decay: float = 1e-4
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.lr < 0 or self.weight_decay < 0 or self.eps < 0:
            raise SkipwayError(
                f"lr={self.lr}, weight_decay={self.weight_decay}, eps={self.eps}", "none of them negative"
            )

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return asdict(self)
