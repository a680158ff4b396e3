"""How far an optimizer step moves the weights of each unit: ‖Δw‖/‖w‖."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from skipway.units.weights import branch_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from skipway.diagnostics.taps import Scalars
    from skipway.units.describe import Described
    from skipway.units.links import Links

__all__ = ["UpdateWatch", "branch_parameters"]


def branch_parameters(described: Sequence[Described], links: Links, model: nn.Module) -> list[list[nn.Parameter]]:
    """For each unit the parameters that its branch reads and that train."""
    own = [[model.get_parameter(name) for name in branch_weights(unit, links)] for unit in described]
    return [[p for p in parameters if p.requires_grad] for parameters in own]


class UpdateWatch:
    """Copies weights just before an optimizer steps and compares afterwards; exact, for all weights of all branches.

    Args:
        optimizers: the first that steps makes the copy: at a time when no activation is held any more.
        parameters: by unit.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[Sequence[nn.Parameter]]
    ) -> None:
        self._parameters = parameters
        self._copies: list[torch.Tensor | None] = []
        self._hooks = ExitStack()
        for optimizer in optimizers:
            self._hooks.callback(optimizer.register_step_pre_hook(self._before).remove)

    def _before(self, *_: object) -> None:
        if not self._copies:
            self._copies = [_joined(parameters) for parameters in self._parameters]

    def finish(self, scalars: Scalars) -> None:
        """Keep ``update`` (‖Δw‖) and ``weight`` (‖w‖ before) of each unit; nothing if no optimizer stepped."""
        self.close()
        copies, self._copies = self._copies, []
        for unit, before in enumerate(copies):
            after = _joined(self._parameters[unit])
            if before is not None and after is not None:
                scalars.put(unit, "weight", torch.linalg.vector_norm(before))
                scalars.put(unit, "update", torch.linalg.vector_norm(after.sub_(before)))

    def close(self) -> None:
        """Take the hooks away."""
        self._hooks.close()


def _joined(parameters: Sequence[nn.Parameter]) -> torch.Tensor | None:
    """A copy of all values behind each other, in single precision at least: a few large operations for many small."""
    if not parameters:
        return None
    with torch.no_grad():
        real = [torch.view_as_real(p) if p.is_complex() else p for p in parameters]
        copy = torch.cat([p.detach().reshape(-1) for p in real])
        return copy if copy.dtype in (torch.float32, torch.float64) else copy.float()
