"""Ctrl-C that finishes the step first."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["Stop", "stop_on_signals"]


class Stop:
    """Whether somebody asked the training to stop."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.requested


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Inside, the first SIGINT or SIGTERM only asks to stop; a second SIGINT interrupts at once.

    In a thread other than the main one nothing is caught, since Python delivers no signals there.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, _frame: FrameType | None) -> None:
        if stop.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            # None: set by a program in C around this Python, which Python cannot put back.
            if handler is not None:
                signal.signal(number, handler)
