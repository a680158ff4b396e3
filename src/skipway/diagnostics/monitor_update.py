"""How far an optimizer step moves the weights of each unit: ‖Δw‖/‖w‖."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from skipway.diagnostics.taps import norm
from skipway.units.links import members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from skipway.diagnostics.taps import Scalars
    from skipway.units.describe import Described
    from skipway.units.links import Links

__all__ = ["UpdateWatch", "branch_parameters"]


def branch_parameters(described: Sequence[Described], links: Links, model: nn.Module) -> list[list[nn.Parameter]]:
    """For each unit the parameters that its branch reads and that train."""
    found = []
    for unit in described:
        used = 0
        for i in unit.candidate.region:
            for j in links.nodes[i].inputs:
                if not links.nodes[j].data:
                    used |= links.nodes[j].params
        own = [model.get_parameter(links.graph.parameter_names[k]) for k in members(used)]
        found.append([p for p in own if p.requires_grad])
    return found


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
        self._copies: dict[int, torch.Tensor] = {}
        self._sizes: dict[int, torch.Tensor] = {}
        self._hooks = ExitStack()
        for optimizer in optimizers:
            self._hooks.callback(optimizer.register_step_pre_hook(self._before).remove)

    def _before(self, *_: object) -> None:
        if not self._copies:
            with torch.no_grad():
                every = {id(p): p for parameters in self._parameters for p in parameters}
                self._copies = {i: p.detach().clone() for i, p in every.items()}
                self._sizes = {i: norm(copy) for i, copy in self._copies.items()}

    def finish(self, scalars: Scalars) -> None:
        """Keep ``update`` (‖Δw‖) and ``weight`` (‖w‖ before) of each unit; nothing if no optimizer stepped."""
        self.close()
        if not self._copies:
            return
        with torch.no_grad():
            every = {id(p): p for parameters in self._parameters for p in parameters}
            moved = {i: norm(copy.sub_(every[i])) for i, copy in self._copies.items()}
            for unit, parameters in enumerate(self._parameters):
                if parameters:
                    scalars.put(unit, "update", torch.stack([moved[id(p)] for p in parameters]).norm())
                    scalars.put(unit, "weight", torch.stack([self._sizes[id(p)] for p in parameters]).norm())

    def close(self) -> None:
        """Take the hooks away."""
        self._hooks.close()
