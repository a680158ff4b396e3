"""Block influence: by how much a unit turns the stream.

Shapes: N samples, C channels, L places, H and W image, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from skipway.trace.batch import output_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.units.intercept import Run

__all__ = ["Influence", "Seen"]


@dataclass
class Influence:
    """``1 − mean cos(x_l, x_{l+1})`` over tokens or pixels, summed up batch by batch (arXiv 2403.03853).

    Args:
        dim: the dimension of channels: 1 for (N,C,L), (N,C,H,W) and volumes, −1 for (N,T,D) and (N,H,W,D).
    """

    dim: int = -1
    total: float = 0.0
    count: int = 0

    def add(self, before: torch.Tensor, after: torch.Tensor) -> None:
        """One batch: the stream before and behind the unit; other shapes are passed over, and tokens that are zero."""
        if before.shape != after.shape or before.dim() < 2 or not before.is_floating_point():
            return
        dim = self.dim
        x, y = before.float(), after.float()
        size = torch.linalg.vector_norm(x, dim=dim) * torch.linalg.vector_norm(y, dim=dim)
        cosines = ((x * y).sum(dim) / size)[size > 0]
        self.total += float(cosines.double().sum() if cosines.device.type != "mps" else cosines.sum())
        self.count += cosines.numel()

    @property
    def value(self) -> float | None:
        """Over all batches so far; None where nothing was seen."""
        return max(0.0, 1.0 - self.total / self.count) if self.count else None  # less than 0 by rounding only


@dataclass
class Seen:
    """One end of a unit, handed on as it is made: ``give`` gets the tensor."""

    part: int
    give: Callable[[torch.Tensor], None]

    def start(self, _run: Run, inputs: list[torch.Tensor]) -> None:
        """One of the model's inputs."""
        if self.part < len(inputs):
            self.give(inputs[self.part])

    def __call__(self, run: Run, result: Any) -> None:
        """What a call gave."""
        with run.aside():
            tensors = output_tensors(result)
            if self.part < len(tensors):
                # A later operation may write into it.
                self.give(tensors[self.part].detach().clone())
