"""Notice a run that writes to parameters, and keep what they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skipway.trace.mode import DispatchMode
from skipway.trace.operation import operation
from skipway.trace.tape import Tape

if TYPE_CHECKING:
    from skipway.trace.preserve import Preserved

__all__ = ["Writes"]


class Writes(DispatchMode):
    """Tells a snapshot of what operations are about to write to."""

    def __init__(self, snapshot: Preserved) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._snapshot = snapshot

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        known = operation(func)
        if known.writes:
            for tensor in known.written(args, kwargs or {}):
                self._snapshot.before_write(Tape.storage(tensor))
        return func(*args, **kwargs or {})
