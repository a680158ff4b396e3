"""A function mode that acts where a recorded run says: at planned calls of torch functions, found again by address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from skipway.trace.graph import Address
    from skipway.trace.modules import ModuleStack

__all__ = ["AddressedMode"]

_Planned = TypeVar("_Planned")


class AddressedMode(TorchFunctionMode, ABC, Generic[_Planned]):
    """Hands every planned call of a torch function to `at`; all others run as they are.

    Addresses hold for one call of the model: open the module stack and the mode anew for each. The mode's presence also
    switches off fused attention paths, as in the recorded run, so that the calls are those that were recorded.

    Args:
        plan: what is planned at which call.
        stack: an open module stack; it says which module is running.
    """

    def __init__(self, plan: Mapping[Address, _Planned], stack: ModuleStack) -> None:
        super().__init__()
        self._plan, self._stack = plan, stack
        self._counts: defaultdict[tuple[int, str], int] = defaultdict(int)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":  # a property such as Tensor.shape
            return func(*args, **kwargs)
        top = self._stack.top
        ordinal = self._counts[top, name]
        self._counts[top, name] = ordinal + 1
        call = self._stack.calls[top]
        planned = self._plan.get((call.path, call.number, name, ordinal))  # type: ignore[call-overload]  # an Address, cheaper
        return func(*args, **kwargs) if planned is None else self.at(planned, func, args, kwargs)

    @abstractmethod
    def at(self, planned: _Planned, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do a planned call; its result is what the model gets."""
