"""How many processor cores there are to use."""

from __future__ import annotations

import os

__all__ = ["cores"]


def cores() -> int:
    """Processor cores that this process may use; a container or a batch system may grant fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
