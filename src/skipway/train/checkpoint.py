"""Checkpoints: model, optimiser, random state and position as one safetensors file; nothing is unpickled.

Tensors are named ``model/KEY``, ``optimizer/PARAMETER/NAME`` and ``random/WHERE``; everything else is JSON in the
file's own metadata. What is spread over processes lies in files of theirs, see `shards`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from skipway.errors import SkipwayError
from skipway.report.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

__all__ = ["Position", "Snapshot", "flat", "load_checkpoint", "save_checkpoint", "save_weights", "write_tensors"]

FORMAT: Final = "skipway.checkpoint/1.0"


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a training stands.

    Args:
        step: optimiser steps that are done.
        seconds: of training so far, over all its stretches.
        metrics_bytes: length of the metrics file at that moment.
        pending: losses of the steps that have no line of metrics yet.
        recent: losses of the last steps, as many as the training loss of a run is the mean over.
        untested: whether a test is due behind this step.
    """

    step: int = 0
    seconds: float = 0.0
    metrics_bytes: int = 0
    pending: tuple[float, ...] = field(default=())
    recent: tuple[float, ...] = field(default=())
    untested: bool = False


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a checkpoint holds.

    Args:
        model: state dict of the model.
        optimizer: state dict of the optimiser.
        random: states of the random number generators, by where they belong.
        position: where the training stands.
        precision: of Fabric's precision plugin, as the loss scale of float16; plain values.
        shards: names of the files beside it that hold the sharded tensors of `model` and `optimizer`.
    """

    model: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    random: dict[str, Tensor]
    position: Position
    precision: dict[str, Any] = field(default_factory=dict)
    shards: tuple[str, ...] = ()


def save_checkpoint(path: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint, whole or not at all; the one before stays until the new one is on the disk.

    Raises:
        SkipwayError: it cannot be written.
    """
    tensors = flat(snapshot.model, snapshot.optimizer["state"])
    tensors |= {f"random/{key}": value for key, value in snapshot.random.items()}
    plain: dict[str, dict[str, Any]] = {}
    for index, state in snapshot.optimizer["state"].items():
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                plain.setdefault(str(index), {})[name] = value
    header = {
        "format": FORMAT,
        "position": json.dumps(asdict(snapshot.position)),
        "precision": json.dumps(snapshot.precision),
        "optimizer": json.dumps({"groups": snapshot.optimizer["param_groups"], "state": plain}),
        **({"shards": json.dumps(snapshot.shards)} if snapshot.shards else {}),
    }
    write_tensors(path, tensors, header)


def flat(model: Mapping[str, Tensor], states: Mapping[Any, Mapping[str, Any]]) -> dict[str, Tensor]:
    """The tensors of a model's state dict and of an optimiser's states, by the names that they have in a checkpoint."""
    tensors = {f"model/{key}": value for key, value in model.items()}
    for index, state in states.items():
        tensors |= {f"optimizer/{index}/{k}": v for k, v in state.items() if isinstance(v, torch.Tensor)}
    return tensors


def save_weights(path: Path, state: dict[str, Tensor]) -> None:
    """Write a state dict, whole or not at all.

    Raises:
        SkipwayError: it cannot be written.
    """
    write_tensors(path, state, {"format": "pt"})


def load_checkpoint(path: Path) -> Snapshot:
    """Read a checkpoint back.

    Raises:
        SkipwayError: there is none, it is damaged, or it is of another version.
    """
    if not path.exists():
        raise SkipwayError(f"no checkpoint at {path}", "a run that was stopped behind its first checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # no mapping, only `keys`
    except (SafetensorError, OSError) as error:
        raise SkipwayError(f"the checkpoint {path} cannot be read: {error}", "the file as it was written") from error
    if header.get("format") != FORMAT:
        raise SkipwayError(f"{path} is of format {header.get('format')!r}", repr(FORMAT))
    read = json.loads(header["optimizer"])
    state: dict[int | str, dict[str, Any]] = {_owner(index): dict(values) for index, values in read["state"].items()}
    for key, value in tensors.items():
        where, _, rest = key.partition("/")
        if where == "optimizer":
            index, _, name = rest.partition("/")
            state.setdefault(_owner(index), {})[name] = value
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in read["groups"]]
    position: dict[str, Any] = {}
    for name, value in json.loads(header["position"]).items():
        position[name] = tuple(value) if isinstance(value, list) else value
    return Snapshot(
        model=_under(tensors, "model/"),
        optimizer={"state": state, "param_groups": groups},
        random=_under(tensors, "random/"),
        precision=json.loads(header.get("precision", "{}")),
        shards=tuple(json.loads(header.get("shards", "[]"))),
        position=Position(**position),
    )


def _owner(text: str) -> int | str:
    """Whose state it is: a parameter's index, or its name where parameters are sharded."""
    return int(text) if text.isdecimal() else text


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str]) -> None:
    """Write tensors and the file's metadata, whole or not at all.

    Raises:
        SkipwayError: they cannot be written.
    """
    # Tied weights share storage, which safetensors refuses; each name gets its own copy of the bytes.
    own = {key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}

    def write(temporary: Path) -> None:
        try:
            save_file(own, temporary, metadata=header)
        except SafetensorError as error:
            # The library says the system's number in words, in its releases in different ones.
            number = re.search(r"(?:os error|code:) *(\d+)", str(error))
            code = int(number[1]) if number else 0
            raise (OSError(code, os.strerror(code)) if code else OSError(str(error))) from error

    write_atomically(path, write)


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
