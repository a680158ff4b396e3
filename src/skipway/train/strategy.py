"""Devices and strategies: Fabric from a spec, and the whole state of a model however it is spread."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import nn

from skipway.errors import SkipwayError
from skipway.models._load_weights import misfits
from skipway.models.unit import PlannedUnit
from skipway.train.hardware import resolve_precision

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from lightning_fabric.loggers.logger import Logger
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

    from skipway.spec import RunSpec

__all__ = ["full_weights", "is_sharded", "launch", "load_state_", "make_fabric", "quiet", "share_buffers_"]

_PARENT: Final = "SKIPWAY_PARENT_PID"
# Kept, so that a pid stays theirs; the system gives that of a process that nobody holds to another one.
_STARTED: Final[list[subprocess.Popen[bytes]]] = []


def make_fabric(spec: RunSpec, loggers: Sequence[Logger] = ()) -> Fabric:
    """Fabric for a run; under ``torchrun`` the number of processes is the launcher's.

    Raises:
        SkipwayError: a device, strategy or precision that is not there.
    """
    devices, nodes = _launched() or (spec.devices, 1)
    strategy: Any = spec.strategy
    if strategy == "fsdp2":
        # By default it would take the devices of a node for tensor parallelism, of which there is no plan.
        strategy = ModelParallelStrategy(
            parallelize_fn=_shard, data_parallel_size=devices * nodes, tensor_parallel_size=1
        )
    given: dict[str, Any] = {
        "accelerator": spec.accelerator, "devices": devices, "num_nodes": nodes, "strategy": strategy,
        "loggers": list(loggers) or None,
    }  # fmt: skip
    # It announces its choice of precision; ours is said in the run's own line.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    try:
        # Only Fabric knows which device "auto" means, and the precision depends on it.
        kind = Fabric(accelerator=spec.accelerator, devices=1).device.type
        precision: Any = resolve_precision(spec.precision, kind)
        return Fabric(**given, precision=precision)
    except SkipwayError:
        raise
    except (ValueError, RuntimeError, ModuleNotFoundError, MisconfigurationException) as error:
        raise SkipwayError(
            f"accelerator={spec.accelerator!r}, devices={spec.devices}, strategy={spec.strategy!r}: {error}",
            "what Lightning Fabric offers on this machine",
        ) from error


def launch(fabric: Fabric) -> dict[int, int]:
    """Start the processes of a run, or join the others that ``torchrun`` started.

    The process group is left at the end of the process, not torn down with it: gloo's threads would abort it. Fabric
    sees to that for NCCL alone.

    Returns:
        Pids, by rank, of the processes that this one started, or of the one that started it; none under ``torchrun``.

    Raises:
        SkipwayError: they do not find each other, as when another program takes the port that was just free.
    """
    network = (torch.distributed.DistNetworkError,) if torch.distributed.is_available() else ()
    with _bound_to_parent() as parent:
        try:
            fabric.launch()
        except network as error:
            reason = str(error).partition("\n")[0]
            raise SkipwayError(
                f"the processes of the run cannot meet: {reason}", "a port that stays free until all are there",
                "the same command again",
            ) from error  # fmt: skip
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        atexit.register(_leave_group)
    started: list[subprocess.Popen[bytes]] = getattr(fabric.strategy.launcher, "procs", [])
    _STARTED.extend(started)
    # Fabric kills all processes, this one too and without a word, when one of its list ends; here that is told.
    started.clear()
    if parent is not None:
        return {0: parent}
    return {fabric.global_rank + k: process.pid for k, process in enumerate(_STARTED, 1)}


@contextmanager
def _bound_to_parent() -> Iterator[int | None]:
    """Inside, a process that Fabric started ends with the one that started it, which nobody else would tell it.

    Gives the parent's pid; None in a process that Fabric did not start.
    """
    if "LOCAL_RANK" not in os.environ:
        os.environ[_PARENT] = str(os.getpid())
        try:
            yield None
        finally:
            del os.environ[_PARENT]
        return
    if _PARENT not in os.environ:
        yield None
        return
    parent, joined = int(os.environ[_PARENT]), threading.Event()

    def look() -> None:
        while not joined.wait(1):
            if os.getppid() != parent:
                os._exit(1)

    threading.Thread(target=look, daemon=True).start()
    try:
        yield parent
    finally:
        joined.set()


def _leave_group() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _launched() -> tuple[int, int] | None:
    """Processes on each node, and nodes, as ``torchrun`` says; None if it did not start this process."""
    if not (torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()):
        return None
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    return here, int(os.environ["WORLD_SIZE"]) // here


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, what libraries say to one another is not said to the user."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"torch\.distributed\.nn\.functional\.all_gather", category=FutureWarning
        )
        # Nothing is done in place to a model's output here.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
        yield


def is_sharded(fabric: Fabric) -> bool:
    """Whether parameters are spread over ranks."""
    return isinstance(fabric.strategy, ModelParallelStrategy)


def share_buffers_(fabric: Fabric, net: nn.Module) -> None:
    """Give all ranks the first one's running statistics, as DDP does in each step and sharding does not."""
    if is_sharded(fabric):
        for buffer in net.buffers():
            torch.distributed.broadcast(buffer, 0)


def full_weights(fabric: Fabric, net: nn.Module) -> dict[str, Tensor]:
    """The state dict of a model, whole on the first rank; all ranks must ask together."""
    if not is_sharded(fabric):
        return net.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return cast("dict[str, Tensor]", state)


def load_state_(
    net: nn.Module, optimizer: torch.optim.Optimizer, model_state: dict[str, Tensor], optimizer_state: dict[str, Any]
) -> None:
    """Put back the state dicts of a model and its optimiser, which are whole.

    Raises:
        SkipwayError: the states are of another model.
    """
    lines = misfits(net.state_dict(), model_state, "the checkpoint")
    if lines:
        raise SkipwayError(
            "\n".join(["the checkpoint is of another model", *lines]), "the model that the run began with"
        )
    try:
        net.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)
    except (RuntimeError, ValueError, KeyError) as error:
        raise SkipwayError(
            f"the checkpoint is of another model: {error}", "the model that the run began with"
        ) from error
    # Fused kernels walk parameter and state in the same order of memory.
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Each unit (of a stranger's model: each entry of a list of modules) sharded by itself, then the rest."""
    from torch.distributed.fsdp import fully_shard

    within = mesh["data_parallel"]
    blocks: list[nn.Module] = [m for m in model.modules() if isinstance(m, PlannedUnit)]
    if not blocks:
        blocks = [child for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) for child in m]
    for block in blocks:
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=within)
    fully_shard(model, mesh=within)
    return model
