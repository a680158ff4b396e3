"""The state before each unit of a stack, kept from one run to start later runs there.

A stack is a module that says what its units are: it has ``built_units()``, and calls the members of ``units`` one after
the other, each with the state that the one before gave. All of ours do.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from skipway.trace.attributes import named_modules
from skipway.trace.batch import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Prefix", "standing_in"]


@contextmanager
def standing_in(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within it a module's calls run `forward` in place of its own, between its hooks; nothing stays on it."""
    place = vars(module)
    had, before = "forward" in place, place.get("forward")
    place["forward"] = forward
    try:
        yield
    finally:
        if had:
            place["forward"] = before
        else:
            place.pop("forward", None)


class Prefix:
    """The states of one stack on one batch: one for each unit, as large as the stream there.

    Args:
        path: of the stack.
        units: its units, in order of execution.
    """

    def __init__(self, path: str, units: list[nn.Module]) -> None:
        self._paths = [f"{path}.units.{i}" if path else f"units.{i}" for i in range(len(units))]
        self._units = units
        self._states: dict[int, Any] = {}

    @classmethod
    def find(cls, model: nn.Module) -> Prefix | None:
        """That of the model's only stack; None where there is none, where units share modules, or within `what_if`."""
        if vars(model).get("_compiled_call_impl") is not None:
            return None  # whoever stands there may want to see every unit run
        stacks = [
            (path, list(units))
            for path, module in named_modules(model)
            if hasattr(module, "built_units") and isinstance(units := getattr(module, "units", None), nn.ModuleList)
        ]
        if len(stacks) != 1:
            return None
        path, units = stacks[0]
        modules = [id(m) for unit in units for m in unit.modules()]
        return cls(path, units) if len(set(modules)) == len(modules) else None

    def __len__(self) -> int:
        return len(self._units)

    def index(self, path: str) -> int:
        """The unit of the stack that a path lies in; 0, from where nothing is left out, for any other."""
        for i, own in enumerate(self._paths):
            if path == own or path.startswith((own + ".", own + "@", own + "#")):
                return i
        return 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A run of the model within it keeps the states."""
        self._states = {}

        def keeping(i: int, forward: Callable[..., Any]) -> Callable[..., Any]:
            def kept(state: Any, *args: Any) -> Any:
                self._states[i] = copied(state)  # a unit may write into its input
                return forward(state, *args)

            return kept

        with ExitStack() as stack:
            for i, unit in enumerate(self._units[1:], 1):
                stack.enter_context(standing_in(unit, keeping(i, unit.forward)))
            yield

    @contextmanager
    def reused(self, first: int) -> Iterator[None]:
        """A run of the model within it starts at unit `first` with the state that was kept."""
        if first not in self._states:
            yield
            return
        with ExitStack() as stack:
            for unit in self._units[: first - 1]:
                stack.enter_context(standing_in(unit, _through))
            stack.enter_context(standing_in(self._units[first - 1], lambda *_: copied(self._states[first])))
            yield


def _through(state: Any, *_: Any) -> Any:
    return state
