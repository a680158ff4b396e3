"""The random number generators of all ranks, kept in a checkpoint and put back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch import Tensor

__all__ = ["gathered_random", "set_own_random_"]


def gathered_random(fabric: Fabric) -> dict[str, Tensor]:
    """States of all ranks, stacked; all ranks must ask together."""
    states = _states(fabric.device)
    if fabric.world_size == 1:
        return {key: value[None] for key, value in states.items()}
    gathered = fabric.all_gather(states)
    assert isinstance(gathered, dict)
    return gathered


def set_own_random_(states: dict[str, Tensor], fabric: Fabric) -> None:
    """Put this rank's generators back to where `gathered_random` found them.

    Raises:
        SkipwayError: the states are of another number of ranks.
    """
    count = len(next(iter(states.values())))
    if count != fabric.world_size:
        raise SkipwayError(f"{fabric.world_size} processes for a run that began with {count}", f"--devices {count}")
    # PyTorch's generators read from the start of a tensor's storage, so a row of a larger tensor needs its own.
    own = {key: value[fabric.global_rank].cpu().clone() for key, value in states.items()}
    version, *inner = own["python"].tolist()
    random.setstate((version, tuple(inner), None))
    *key, pos = own["numpy"].tolist()
    # The global generator is what a user's module draws from.
    np.random.set_state({"bit_generator": "MT19937", "state": {"key": np.array(key, dtype=np.uint32), "pos": pos}})  # noqa: NPY002
    torch.set_rng_state(own["torch"])
    if "cuda" in own and fabric.device.type == "cuda":
        torch.cuda.set_rng_state(own["cuda"], fabric.device)


def _states(device: torch.device) -> dict[str, Tensor]:
    version, inner, _ = random.getstate()
    numbers = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  # as above
    states = {
        "python": torch.tensor([version, *inner], dtype=torch.int64),
        "numpy": torch.tensor([*numbers["key"].tolist(), numbers["pos"]], dtype=torch.int64),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
