"""Holding a unit's x (or its sum) from where it is made to where an alteration needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from skipway.errors import SkipwayError
from skipway.trace.batch import output_tensors

if TYPE_CHECKING:
    from skipway.units.describe import Described
    from skipway.units.intercept import Run
    from skipway.units.locate import Located, Made

__all__ = ["Held", "made_x"]


@dataclass(frozen=True)
class Held:
    """A value of a run that is kept under a key; equal ones are one, so that nothing is kept twice.

    Args:
        owner: the alteration that needs it: nested ones do not take each other's.
        node: the recorded node.
        part: which tensor of the result (or of the model's inputs).
        unit: the unit's path, for errors.
        what: what it is, for errors.
    """

    owner: object
    node: int
    part: int
    unit: str
    what: str

    def start(self, run: Run, inputs: list[torch.Tensor]) -> None:
        """Keep one of the model's inputs."""
        if self.part >= len(inputs) or not inputs[self.part].is_floating_point():
            raise SkipwayError(
                f"{self.what} of unit {self.unit!r} is input {self.part} of the model, and this call has another there",
                "calls with the same arguments, given in the same way, as in the batch that the units were found on",
            )
        self(run, inputs[self.part])

    def __call__(self, run: Run, result: Any) -> None:
        """Keep what a call gave."""
        tensors = output_tensors(result)
        if self.part < len(tensors):
            tensor = tensors[self.part]
            run.held[self] = tensor
            run.held[self, "version"] = _version(tensor)

    def get(self, run: Run) -> torch.Tensor:
        """The value.

        Raises:
            SkipwayError: it was not made in this call, or was overwritten meanwhile.
        """
        tensor = run.held.get(self)
        if not isinstance(tensor, torch.Tensor):
            raise SkipwayError(
                f"{self.what} of unit {self.unit!r} was not made in this call where it was when it was found",
                "calls that run the same code as the one in which the units were found",
            )
        if not run.again and _version(tensor) != run.held[self, "version"]:
            raise SkipwayError(
                f"{self.what} of unit {self.unit!r} is overwritten in place before it is needed",
                "a model that does not write to the stream between the two",
            )
        return tensor

    def drop(self, run: Run) -> None:
        """Keep it no longer."""
        run.held.pop(self, None)
        run.held.pop((self, "version"), None)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)  # the only sign of in-place writes


def made_x(unit: Described, located: Located) -> tuple[int, Made] | None:
    """Where a unit's x is made: its node, or what that is a view of where the shape is the same."""
    nodes, candidate = located.links.nodes, unit.candidate
    for node in (candidate.x, candidate.base):
        made = located.made(node)
        if made is not None and nodes[node].shape == nodes[candidate.x].shape:
            return node, made
    return None
