"""Checkpoints of a sharded net: every process writes the rows that it holds, and reads the rows that it needs.

Beside ``state.safetensors``, which names the shards and holds whatever is not sharded, lies a file of each process,
``step-S-rank-R-of-N.safetensors``: tensors under the names of `checkpoint`, and in its metadata the first row of each
and the number of rows in all. Parameters are sharded by rows alone, so any other number of processes finds its rows in
slices of these files.

PyTorch's own storage of safetensors shards is younger than the oldest PyTorch that skipway takes, keeps tensors alone,
and writes over the checkpoint before.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from safetensors import SafetensorError, safe_open
from torch.distributed.tensor import DTensor

from skipway.errors import SkipwayError
from skipway.train.checkpoint import Snapshot, flat, save_checkpoint, write_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch
    from lightning_fabric import Fabric
    from torch import Tensor, nn

__all__ = ["load_shards_", "save_shards"]

FORMAT: Final = "skipway.shard/1.0"


def save_shards(path: Path, fabric: Fabric, net: nn.Module, optimizer: torch.optim.Optimizer, rest: Snapshot) -> None:
    """Write a checkpoint from all processes; the one before stays until the new one is whole.

    Args:
        path: of the checkpoint; the shards lie beside it.
        fabric: whose processes these are.
        net: as it was sharded.
        optimizer: of its parameters.
        rest: what is state of neither.

    Raises:
        SkipwayError: it cannot be written, or the first process does not see what another one wrote.
    """
    model, states = _states(net, optimizer)
    own = {key: value for key, value in flat(model, states["state"]).items() if _is_sharded(value)}
    rows = {key: (_first_row(value), len(value)) for key, value in own.items()}
    step, count = rest.position.step, fabric.world_size
    names = tuple(f"step-{step}-rank-{rank}-of-{count}.safetensors" for rank in range(count))
    write_tensors(
        path.with_name(names[fabric.global_rank]), {key: value.to_local() for key, value in own.items()},
        {"format": FORMAT, "rows": json.dumps(rows)},
    )  # fmt: skip
    fabric.barrier()
    if not fabric.is_global_zero:
        return
    for name in names:
        if not path.with_name(name).exists():
            raise SkipwayError(f"the first process does not see {name}", f"{path.parent} on a disk that all share")
    whole = {"state": {of: _whole(state) for of, state in states["state"].items()}}
    groups = {"param_groups": states["param_groups"]}
    save_checkpoint(path, replace(rest, model=_whole(model), optimizer=whole | groups, shards=names))
    for other in (*path.parent.glob("step-*"), *path.parent.glob(".step-*")):
        if other.name not in names:
            other.unlink()


def load_shards_(path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, snapshot: Snapshot) -> None:
    """Put a checkpoint into a sharded net and its optimiser, whatever number of processes wrote it.

    Raises:
        SkipwayError: a shard is missing or damaged, or the checkpoint is of another model.
    """
    from torch.distributed.checkpoint.state_dict import set_state_dict

    model, states = _states(net, optimizer)
    wanted, whole = flat(model, states["state"]), flat(snapshot.model, snapshot.optimizer["state"])
    try:
        with ExitStack() as opened:
            files = [opened.enter_context(safe_open(path.with_name(n), framework="pt")) for n in snapshot.shards]
            shards = [(json.loads((file.metadata() or {}).get("rows", "{}")), file) for file in files]
            for key in sorted(wanted.keys() ^ {*whole, *(key for rows, _ in shards for key in rows)}):
                raise _of_another_model(f"it has no {key}" if key in wanted else f"it has {key}")
            for key, value in wanted.items():
                if _is_sharded(value):
                    _fill_rows_(key, value, [(*rows[key], file.get_slice(key)) for rows, file in shards if key in rows])
                else:
                    _check_shape(key, value, tuple(whole[key].shape))
                    value.copy_(whole[key])
    except (SafetensorError, OSError) as error:
        raise SkipwayError(f"a shard of {path} cannot be read: {error}", "the files as they were written") from error
    states["param_groups"] = snapshot.optimizer["param_groups"]
    set_state_dict(net, optimizer, model_state_dict=cast("dict[str, Any]", model), optim_state_dict=states)


def _fill_rows_(key: str, value: DTensor, parts: list[tuple[int, int, Any]]) -> None:
    """Copy the rows that lie here from the parts that hold them: first row, rows in all, and a slice of the file."""
    local, first = value.to_local(), _first_row(value)
    copied = 0
    for start, total, part in parts:
        count, *others = part.get_shape()
        _check_shape(key, value, (total, *others))
        low, high = max(first, start), min(first + len(local), start + count)
        if low < high:
            local[low - first : high - first] = part[low - start : high - start]
            copied += high - low
    if copied != len(local):
        raise SkipwayError(f"the shards hold {copied} of {len(local)} rows of {key}", "the files as they were written")


def _states(net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, states = get_state_dict(net, optimizer)
    return cast("dict[str, Tensor]", model), dict(states)


def _is_sharded(value: object) -> TypeGuard[DTensor]:
    return isinstance(value, DTensor) and value.placements[0].is_shard()


def _first_row(value: DTensor) -> int:
    """Of the rows that lie here: dealt out as by ``torch.chunk``."""
    size = -(-len(value) // value.device_mesh.size())
    return min(value.device_mesh.get_local_rank() * size, len(value))


def _whole(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not _is_sharded(value)}


def _check_shape(key: str, value: Tensor, found: tuple[int, ...]) -> None:
    if found != tuple(value.shape):
        raise _of_another_model(f"{key} is {found}, in the model {tuple(value.shape)}")


def _of_another_model(why: str) -> SkipwayError:
    return SkipwayError(f"the checkpoint is of another model: {why}", "the model that the run began with")
