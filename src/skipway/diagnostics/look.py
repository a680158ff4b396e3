"""One more forward run that reads what rules want to see of the recorded operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from skipway.trace.batch import Batch, call_arguments, copied, tensors_of
from skipway.trace.mode import with_gradients
from skipway.trace.modules import ModuleStack, eager
from skipway.trace.operation import flat_tensors, operation
from skipway.trace.placed import PlacedMode
from skipway.trace.preserve import preserved
from skipway.trace.unfused import Unfused

if TYPE_CHECKING:
    from torch import nn

    from skipway.trace.graph import Graph, Place

__all__ = ["Reduce", "Want", "look"]

Reduce = Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor | float]
"""``reduce(result, operands)`` of one operation, run without gradients. Neither may be written to or kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A number to be read at an operation of the recorded run.

    Args:
        node: the operation, by its number in the graph. Leaves (parameters, constants, the input) are none, and of a
            fused addition only the whole can be seen.
        name: what the number is called.
        reduce: makes the number of the operation's result and of the tensors that it read, in their order.
    """

    node: int
    name: str
    reduce: Reduce


class _Look(PlacedMode):
    def __init__(self, graph: Graph, wants: Sequence[Want], stack: ModuleStack) -> None:
        super().__init__(stack)
        self._nodes = graph.nodes
        self._plan: defaultdict[Place, list[Want]] = defaultdict(list)
        for want in wants:
            node = graph.nodes[want.node]
            if node.source:
                self._plan[graph.place(node)].append(want)
        self.seen: dict[tuple[int, str], torch.Tensor | float] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        planned = self._plan.get(self.place(func))
        if planned is None:
            return func(*args, **kwargs)
        operands = flat_tensors(args, kwargs)
        if operation(func).writes:
            operands = [t.clone() for t in operands]
        out = func(*args, **kwargs)
        results = tensors_of(out)
        for want in planned:
            node = self._nodes[want.node]
            part = node.attrs.get("part")
            matching = results[part : part + 1] if part is not None else results
            result = next((t for t in matching if tuple(t.shape) == node.shape), None)
            if result is not None:
                self.seen[want.node, want.name] = want.reduce(result, operands)
        return out


def look(
    model: nn.Module, batch: Batch, graph: Graph, wants: Sequence[Want], *, keep_parameters: bool = False
) -> dict[tuple[int, str], float]:
    """The numbers that were wanted, by node and name, from one run like the recorded one; the model is left as it was.

    A number whose operation this run does not come to is left out.
    """
    args, kwargs = copied(call_arguments(batch))
    grads = with_gradients(graph.takes_gradients)
    with preserved(model, parameters=keep_parameters), eager(), ModuleStack(model) as stack, grads:
        mode = _Look(graph, wants, stack)
        with mode, Unfused():
            model(*args, **kwargs)
    return {key: float(value) for key, value in mode.seen.items()}
