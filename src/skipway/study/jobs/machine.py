"""How many runs at a time, and with how much of the machine each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from skipway.cores import cores
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from skipway.spec import RunSpec

__all__ = ["worker_devices", "workers_and_threads"]


def worker_devices(settings: RunSpec) -> list[str]:
    """CUDA devices that runs are spread over, as ``CUDA_VISIBLE_DEVICES`` names them; none for processors."""
    if settings.accelerator not in ("auto", "gpu", "cuda"):
        return []
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(k) for k in range(count)]


def workers_and_threads(runs: int, settings: RunSpec, workers: int | None) -> tuple[int, int]:
    """Runs at a time and processor threads of each.

    One for each GPU; on a processor one for each core with one thread, which beats fewer runs with more threads each
    unless there are fewer runs than cores.

    Args:
        runs: in all.
        settings: of every run.
        workers: runs at a time, if somebody wants to say.

    Raises:
        SkipwayError: no workers, or more than there are GPUs.
    """
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise SkipwayError(f"workers={workers!r}", "an integer from 1")
    devices = worker_devices(settings)
    if not devices and workers is None and _on_apple_gpu(settings):
        workers = 1
    if devices and workers is not None and workers > len(devices):
        raise SkipwayError(f"workers={workers} for {len(devices)} GPUs", "at most one run for each GPU")
    room = len(devices) or cores()
    at_a_time = min(workers or room, runs)
    return at_a_time, max(1, cores() // at_a_time)


def _on_apple_gpu(settings: RunSpec) -> bool:
    if settings.accelerator not in ("auto", "gpu", "mps"):
        return False
    import torch

    return torch.backends.mps.is_available()
