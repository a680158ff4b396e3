"""The random number generators of all ranks, kept in a checkpoint and put back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch

from skipway.data.order import generator
from skipway.spec import MOST_SEED

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch import Tensor

__all__ = ["gathered_random", "ranks_of", "seed_own_random_", "set_own_random_"]


def gathered_random(fabric: Fabric) -> dict[str, Tensor]:
    """States of all ranks, stacked; all ranks must ask together."""
    states = _states(fabric.device)
    if fabric.world_size == 1:
        return {key: value[None] for key, value in states.items()}
    gathered = fabric.all_gather(states)
    assert isinstance(gathered, dict)
    return gathered


def ranks_of(states: dict[str, Tensor]) -> int:
    """How many ranks these are the states of."""
    return len(next(iter(states.values())))


def seed_own_random_(fabric: Fabric, seed: int) -> None:
    """As a run begins: ranks draw different dropout."""
    fabric.seed_everything((seed + fabric.global_rank) % (MOST_SEED + 1), verbose=False)


def set_own_random_(states: dict[str, Tensor], fabric: Fabric, *, seed: int, step: int) -> bool:
    """Put this rank's generators back to where `gathered_random` found them.

    Another number of ranks has no such states. Where the net never drew from them, theirs are those of the beginning;
    else each rank's are drawn from the seed, the step and the ranks there are.

    Returns:
        Whether the net draws other numbers than it would have drawn undisturbed.
    """
    if ranks_of(states) == fabric.world_size:
        _set({key: value[fabric.global_rank] for key, value in states.items()}, fabric.device)
        return False
    fabric.seed_everything(seed, verbose=False)  # as the first rank was
    begun = _states(fabric.device)
    drawn = any(not torch.equal(begun[key], states[key][0].cpu()) for key in begun.keys() & states.keys())
    if drawn:
        new = generator("ranks", seed, step, fabric.world_size, fabric.global_rank).initial_seed()
        fabric.seed_everything(new % (MOST_SEED + 1), verbose=False)
    else:
        seed_own_random_(fabric, seed)
    return drawn


def _set(states: dict[str, Tensor], device: torch.device) -> None:
    # PyTorch's generators read from the start of a tensor's storage, so a row of a larger tensor needs its own.
    own = {key: value.cpu().clone() for key, value in states.items()}
    version, *inner = own["python"].tolist()
    # Both draw normal numbers two at a time, and hold the second one; older checkpoints do not know it.
    (has_python, python_gauss), (has_numpy, numpy_gauss) = own.get("gauss", torch.zeros(2, 2)).tolist()
    random.setstate((version, tuple(inner), python_gauss if has_python else None))
    *key, pos = own["numpy"].tolist()
    # The global generator is what a user's module draws from.
    np.random.set_state({  # noqa: NPY002
        "bit_generator": "MT19937", "state": {"key": np.array(key, dtype=np.uint32), "pos": pos},
        "has_gauss": int(has_numpy), "gauss": numpy_gauss,
    })  # fmt: skip
    torch.set_rng_state(own["torch"])
    if "cuda" in own and device.type == "cuda":
        torch.cuda.set_rng_state(own["cuda"], device)


def _states(device: torch.device) -> dict[str, Tensor]:
    version, inner, gauss = random.getstate()
    whole = np.random.get_state(legacy=False)  # noqa: NPY002  # as above
    numbers = whole["state"]
    states = {
        "python": torch.tensor([version, *inner], dtype=torch.int64),
        "numpy": torch.tensor([*numbers["key"].tolist(), numbers["pos"]], dtype=torch.int64),
        "gauss": torch.tensor(
            [[gauss is not None, gauss or 0.0], [whole["has_gauss"], whole["gauss"]]], dtype=torch.float64
        ),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states
