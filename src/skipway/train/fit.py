"""Carry out a run: prepare, train, inspect at both ends, keep everything in a run folder."""

from __future__ import annotations

import copy
import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from skipway.data import open_data
from skipway.errors import MissingPackageError, SkipwayError
from skipway.models.compiled import compile_model
from skipway.models.load_for import load_for_run
from skipway.models.memory import MemoryModes
from skipway.report.files import write_json
from skipway.report.numbers import counted
from skipway.train.check import check_real, check_trainable
from skipway.train.checkpoint import Position, Snapshot, load_checkpoint, save_checkpoint, save_weights
from skipway.train.ending import diverged, finished
from skipway.train.folder import RunFolder, there
from skipway.train.hardware import environment, resolve_layout
from skipway.train.inputs import save_preparation
from skipway.train.listen import Listener, Logged
from skipway.train.look import look
from skipway.train.loop import DivergedError, Training, train
from skipway.train.metrics import MetricsFile
from skipway.train.optimizer import build_optimizer
from skipway.train.randomness import gathered_random, ranks_of, seed_own_random_, set_own_random_
from skipway.train.regroup import what_differs
from skipway.train.run import Run
from skipway.train.shards import load_shards_, save_shards
from skipway.train.stop import stop_on_signals
from skipway.train.strategy import full_weights, is_sharded, launch, load_state_, make_fabric, quiet
from skipway.train.watch import watched

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_fabric import Fabric
    from lightning_fabric.loggers.logger import Logger
    from torch import nn

    from skipway.data import Dataset
    from skipway.spec import Memory, RunSpec

__all__ = ["resume", "run_spec"]


def run_spec(
    spec: RunSpec,
    out: str | Path,
    *,
    module: nn.Module | None = None,
    data: Dataset | None = None,
    listener: Listener | None = None,
    log: str | None = None,
) -> Run:
    """Carry out a run spec in a new folder.

    Args:
        spec: what to do.
        out: the folder; new or empty.
        module: the model, where `spec.model` is no name.
        data: the data set, if it is open already.
        listener: is told what happens.
        log: ``"tensorboard"`` to write scalars there too.

    Raises:
        SkipwayError: the folder holds something; the data are not there; the model does not fit them.
    """
    return _Session(spec, RunFolder(out), module, data, listener or Logged(), resumed=False).run(log)


def resume(
    path: str | Path,
    *,
    module: nn.Module | None = None,
    data: Dataset | None = None,
    listener: Listener | None = None,
    log: str | None = None,
    devices: int | None = None,
) -> Run:
    """Go on with a run that was stopped, to the same bits as if it had not been.

    On three processes or more DDP adds the gradients of the first step in another order, which rounds otherwise.

    On another number of processes the steps have the same samples in the same order, equally augmented, and losses are
    those of the undisturbed run but for rounding. The net's own random draws (dropout) are others, and BatchNorm sees
    batches of another size; that is said where it is so.

    Args:
        path: folder of the run.
        module: the model as it was at the beginning, where the run was given a module.
        data: the data set, if it is open already.
        listener: is told what happens.
        log: as for `run_spec`.
        devices: number of processes to go on with; by default as many as the run began with. Under ``torchrun`` it is
            the launcher's.

    Raises:
        SkipwayError: no run lies there, it is over, it needs its module, the data are others, or the batch cannot be
            shared out among the processes.
    """
    folder = RunFolder(path)
    spec = folder.read_spec()
    if devices is not None:
        spec = replace(spec, devices=devices)
    if folder.finished:
        status = folder.read_result()["status"]
        raise SkipwayError(f"the run in {path} is over ({status})", "a run that was stopped", f"skipway report {path}")
    if spec.model.startswith("module:") and module is None:
        raise SkipwayError(
            f"the run in {path} was given a module, {spec.model.removeprefix('module:')}",
            "the same module, freshly built",
            "skipway.resume(DIR, module=MyNet())",
        )
    return _Session(spec, folder, module, data, listener or Logged(), resumed=True).run(log)


class _Session:
    """One stretch of a run, from its start or a checkpoint to its end or a stop."""

    def __init__(
        self,
        spec: RunSpec,
        folder: RunFolder,
        module: nn.Module | None,
        data: Dataset | None,
        listener: Listener,
        *,
        resumed: bool,
    ) -> None:
        self.spec, self.folder, self.listener, self.resumed = spec, folder, listener, resumed
        self._module, self._data = module, data

    def run(self, log: str | None) -> Run:
        """Everything, with the folder held by the first rank."""
        threads = torch.get_num_threads()
        try:
            with quiet():
                fabric = make_fabric(self.spec, self._loggers(log))
                kin = launch(fabric)
                with watched(fabric, self.folder, kin):
                    with ExitStack() as held:
                        self._take_folder(fabric, held)
                        self._stretch(fabric)
                    # The other ranks read how it ended, too.
                    fabric.barrier()
        finally:
            torch.set_num_threads(threads)
        return Run(self.folder.path)

    def _take_folder(self, fabric: Fabric, held: ExitStack) -> None:
        """The first rank locks the folder and looks whether a run may begin; if not, no rank goes on."""
        refusal: SkipwayError | None = None
        if fabric.is_global_zero:
            try:
                held.enter_context(self.folder.locked())
                if not self.resumed:
                    self.folder.check_free(self.spec)
            except SkipwayError as error:
                refusal = error
        refused = float(refusal is not None)
        if fabric.world_size > 1:
            refused = float(fabric.all_reduce(torch.tensor(refused, device=fabric.device), reduce_op="sum"))  # type: ignore[arg-type]  # a tensor in, a tensor out
        if refusal is not None:
            raise refusal
        if refused:
            raise SkipwayError(f"the first process cannot use {self.folder.path}", "what it says itself")

    def _stretch(self, fabric: Fabric) -> None:
        spec, folder, first = self.spec, self.folder, fabric.is_global_zero
        net, data, facts = self._prepared(fabric)
        snapshot = load_checkpoint(folder.checkpoint_path) if self.resumed and folder.checkpoint_path.exists() else None
        if snapshot is None and spec.inspect and first:
            look("start", net, data, folder, self.listener)
        # A sharded net cannot be inspected; its weights go into this one at the end.
        twin = copy.deepcopy(net) if is_sharded(fabric) and spec.inspect and first else None

        model = fabric.setup_module(net)
        optimizer = build_optimizer(net, spec.recipe.optimizer, fused=not is_sharded(fabric))
        stepping: Any = fabric.setup_optimizers(optimizer)
        position = Position()
        if snapshot is None:
            seed_own_random_(fabric, spec.seed)
        else:
            position = snapshot.position
            if is_sharded(fabric):
                load_shards_(folder.checkpoint_path, net, optimizer, snapshot)
            else:
                load_state_(net, optimizer, snapshot.model, snapshot.optimizer)
            fabric.strategy.precision.load_state_dict(snapshot.precision)
            drawn = set_own_random_(snapshot.random, fabric, seed=spec.seed, step=position.step)
            self._note_regrouping(fabric, net, snapshot, drawn=drawn)

        def save(at: Position) -> None:
            precision = fabric.strategy.precision.state_dict()
            rest = Snapshot(random=gathered_random(fabric), position=at, precision=precision)
            if is_sharded(fabric):
                save_shards(folder.checkpoint_path, fabric, net, optimizer, rest)
            elif first:
                whole = replace(rest, model=net.state_dict(), optimizer=optimizer.state_dict())
                save_checkpoint(folder.checkpoint_path, whole)

        with stop_on_signals() as stop:
            training = Training(
                spec=spec, fabric=fabric, net=net, model=model, optimizer=stepping, data=data, metrics=None, save=save,
                stopped=stop, position=position,
            )  # fmt: skip
            if first:
                self.listener.started(spec, step=position.step, facts=_one_line(facts))
                training.metrics = MetricsFile(
                    folder.metrics_path, length=position.metrics_bytes, listener=self.listener.measured,
                    loggers=fabric.loggers,
                )  # fmt: skip
            over = self._trained(training)
        if over:
            state = full_weights(fabric, net)
            if first:
                save_weights(folder.weights_path, state)
                if twin is not None:
                    twin.load_state_dict(state)
                if spec.inspect:
                    look("end", net if twin is None else twin, data, folder, self.listener)
                self.listener.ended(finished(training, folder))

    def _trained(self, training: Training) -> bool:
        """Whether the run came to its end; what happened otherwise is written and said."""
        try:
            over = train(training)
        except DivergedError as error:
            if training.metrics is not None:
                self.listener.ended(diverged(training, self.folder, error))
            return False
        finally:
            if training.metrics is not None:
                training.metrics.close()
        if not over:
            self.listener.noted(f"stopped at step {training.position.step}; to go on: {self.folder.go_on(self.spec)}")
        return over

    def _prepared(self, fabric: Fabric) -> tuple[nn.Module, Dataset, dict[str, Any]]:
        """The net on its device, the data, and the facts of ``environment.json``, written or compared."""
        spec, folder = self.spec, self.folder
        known = folder.read_environment() if self.resumed and folder.environment_path.exists() else {}
        threads = known.get("threads", spec.threads)
        if threads is not None:
            torch.set_num_threads(threads)
        data = open_data(spec.data, device=fabric.device) if self._data is None else self._data
        fabric.seed_everything(spec.seed, verbose=False)
        # Not by their truth: a module may have a length, which a compiled one cannot tell.
        net = self._module
        if net is None:
            try:
                net = load_for_run(spec, num_classes=data.info.num_classes, input_shape=data.info.input_shape)
            except SkipwayError as error:
                began = known.get("folder")
                if began in (None, os.getcwd()):  # noqa: PTH109
                    raise
                raise SkipwayError(error.given, error.expected, f"cd {began}, where the run began") from error
        check_real(net)
        net.to(fabric.device)
        check_trainable(net, data, spec.recipe.batch_size, rank=fabric.global_rank, world_size=fabric.world_size)
        channels_last = resolve_layout(spec.channels_last, net, sharded=is_sharded(fabric))
        if channels_last:
            net.to(memory_format=torch.channels_last)
        facts = environment(spec, fabric=fabric, channels_last=channels_last)
        facts["data"] = asdict(data.info)
        if ":" in spec.model or spec.model.endswith(".py"):
            facts["folder"] = known.get("folder", os.getcwd())  # noqa: PTH109  # code is looked for from here
        if isinstance(net, MemoryModes) and net.memory == "auto":
            facts["memory"] = self._settled(net, data, fabric, known.get("memory"))
        compile_model(net, spec.compile)
        if known:
            self._compare(known, facts)
        elif fabric.is_global_zero:
            folder.begin(spec, facts)
        if fabric.is_global_zero and data.preparation is not None and not there(folder.inputs_path):
            save_preparation(folder.inputs_path, data.preparation)
        return net, data, facts

    def _settled(self, net: MemoryModes, data: Dataset, fabric: Fabric, known: Memory | None) -> Memory:
        """The mode that ``"auto"`` means here; a run goes on in the one that it began in, since bits depend on it."""
        if known is not None:
            net.set_memory(known)
            return known
        samples = -(-self.spec.recipe.batch_size // fabric.world_size)
        x, _ = data.sample(min(samples, 4, data.info.train_size))
        with fabric.autocast():
            choice = net.choose_memory(x, samples=samples)
        if fabric.is_global_zero:
            self.listener.noted(str(choice))
        return choice.mode

    def _note_regrouping(self, fabric: Fabric, net: nn.Module, snapshot: Snapshot, *, drawn: bool) -> None:
        """Where another number of processes wrote the checkpoint: say what differs, and put it on record."""
        before, now = ranks_of(snapshot.random), fabric.world_size
        if before == now or not fabric.is_global_zero:
            return
        self.listener.noted(what_differs(net, self.spec.recipe.batch_size, before=before, now=now, drawn=drawn))
        known = self.folder.read_environment()
        stretch = {"step": snapshot.position.step, "devices": now}
        kept = known | {"regrouped": [*known.get("regrouped", []), stretch]}
        write_json(self.folder.environment_path, kept)

    def _compare(self, known: dict[str, Any], facts: dict[str, Any]) -> None:
        """A run goes on only with the same data, strategy and precision; other versions are said: bits may change."""
        before, now = known["data"]["fingerprint"], facts["data"]["fingerprint"]
        if before != now:
            raise SkipwayError(
                f"the data are others than those the run began with (fingerprint {now}, was {before})",
                f"{known['data']['name']}: {known['data']['note']}",
            )
        for key in ("strategy", "precision"):
            if known[key] != facts[key]:
                raise SkipwayError(
                    f"--{key} {facts[key]} for a run that began with {known[key]}", f"--{key} {known[key]}"
                )
        changed = [f"{k} {known[k]} → {facts[k]}" for k in ("torch", "processor", "python") if known[k] != facts[k]]
        if changed:
            self.listener.noted("perhaps not the bits of an undisturbed run: " + ", ".join(changed))

    def _loggers(self, log: str | None) -> list[Logger]:
        if log is None:
            return []
        if log != "tensorboard":
            raise SkipwayError(f"--log {log}", "tensorboard")
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        try:
            return [TensorBoardLogger(root_dir=self.folder.path, name="tensorboard", version="")]
        except ModuleNotFoundError:
            raise MissingPackageError("tensorboard", "--log tensorboard", "track") from None


def _one_line(facts: dict[str, Any]) -> str:
    how = {"bf16-mixed": "bf16 autocast", "32-true": "float32"}.get(facts["precision"], facts["precision"])
    layout = ", channels-last" if facts["channels_last"] else ""
    where = facts["processor"] if facts["device"].startswith("cpu") else facts["device"]
    several = f" × {facts['devices']} ({facts['strategy']})" if facts["devices"] > 1 else ""
    return f"{how}{layout}, {counted(facts['threads'], 'thread')} on {where}{several}"
