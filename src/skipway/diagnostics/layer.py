"""A weighted layer with its numbers: what is measured where a model has no units to measure at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skipway.units.reading import checked, measured

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Layer"]


@dataclass(frozen=True, slots=True)
class Layer:
    """A weighted layer of the trunk, for models that have no units to measure at.

    Args:
        path: module path.
        rms: root mean square of its output (dimensionless).
        grad: L2 norm of the gradient of the loss with respect to its output (units of the loss per unit of output).
    """

    path: str
    rms: float | None
    grad: float | None

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return {"path": self.path, "rms": self.rms, "grad": self.grad}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Layer:
        """The record that `to_dict` wrote.

        Raises:
            SkipwayError: a field is missing or unknown, or a number is none.
        """
        checked(data, ("path", "rms", "grad"), "layer")
        return cls(data["path"], measured(data["rms"], "rms"), measured(data["grad"], "grad"))
