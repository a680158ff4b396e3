"""Checkpointing under interception: what is computed again in the backward pass must run as it ran before.

The recomputation takes place outside the model's call, where no mode is open. While an intercepted call runs, both
kinds of `torch.utils.checkpoint` are therefore given a function that takes the interception up where the part began.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from torch.utils import checkpoint as checkpointing

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["recomputed_alike"]

Again: TypeAlias = "Callable[[Callable[..., Any], tuple[Any, ...]], Any]"
_FRAME: Final = "_CheckpointFrame"
_REENTRANT: Final = "CheckpointFunction"


class _Reentrant:
    """In place of ``CheckpointFunction``: its function runs as it is the first time and taken up again afterwards."""

    def __init__(self, function: Any, replay: Callable[[], Again]) -> None:
        self._function, self._replay = function, replay

    def apply(self, function: Callable[..., Any], *rest: Any) -> Any:
        again = self._replay()
        calls = 0

        def run(*inputs: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*inputs) if calls == 1 else again(function, inputs)

        return self._function.apply(run, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


@contextmanager
def recomputed_alike(replay: Callable[[], Again]) -> Iterator[None]:
    """Within it, parts that are checkpointed are recomputed through ``replay()``, taken when the part begins.

    Args:
        replay: notes the state of the run; what it returns runs ``function(*inputs)`` from that state.

    Raises:
        SkipwayError: this version of PyTorch checkpoints in another way.
    """
    frame, reentrant = getattr(checkpointing, _FRAME, None), getattr(checkpointing, _REENTRANT, None)
    if frame is None or reentrant is None:
        raise SkipwayError(
            "this version of PyTorch recomputes checkpointed parts in a way that cannot be followed",
            f"torch.utils.checkpoint with {_FRAME} and {_REENTRANT}",
        )

    def framed(recompute: Callable[..., Any], *rest: Any, **options: Any) -> Any:
        again = replay()
        return frame(lambda *inputs: again(recompute, inputs), *rest, **options)

    setattr(checkpointing, _FRAME, framed)
    setattr(checkpointing, _REENTRANT, _Reentrant(reentrant, replay))
    try:
        yield
    finally:
        setattr(checkpointing, _FRAME, frame)
        setattr(checkpointing, _REENTRANT, reentrant)
