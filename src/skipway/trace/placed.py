"""A dispatch mode that knows where in the run it is: which operation of its name, in which module call."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from skipway.trace.graph import Place
from skipway.trace.mode import DispatchMode, in_backward
from skipway.trace.operation import operation

if TYPE_CHECKING:
    from skipway.trace.modules import ModuleStack

__all__ = ["PlacedMode"]


class PlacedMode(DispatchMode):
    """Finds recorded operations again: `place` gives what `Graph.place` gave in the recorded run.

    Places hold for one call of the model, in the mode and with or without gradients as it was recorded: open the module
    stack and the mode anew for each.

    Args:
        stack: an open module stack; it says which module is running.
    """

    def __init__(self, stack: ModuleStack) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        self._stack = stack
        self._ordinals: defaultdict[tuple[int, str], int] = defaultdict(int)

    def place(self, func: Any) -> Place:
        """Count an operation, and say where it runs; to be called once for each."""
        op = operation(func).op
        if in_backward():  # not recorded
            return Place("", -1, op, -1)
        top = self._stack.top
        ordinal = self._ordinals[top, op]
        self._ordinals[top, op] = ordinal + 1
        call = self._stack.calls[top]
        return Place(call.path, call.number, op, ordinal)
