"""`skipway.Monitor`: the signal along the stream while anybody's model trains in anybody's loop."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from typing_extensions import Self

from skipway.diagnostics.judge import judge
from skipway.diagnostics.monitor.call import NextCall
from skipway.diagnostics.monitor.log import sink
from skipway.diagnostics.monitor.reader import Sample, reading_plan
from skipway.diagnostics.monitor.record import Record, readings
from skipway.diagnostics.monitor.rules import Watch
from skipway.diagnostics.monitor.scale import ScaleWatch
from skipway.diagnostics.monitor.update import UpdateWatch, branch_parameters
from skipway.errors import SkipwayError
from skipway.trace.addressed import AddressedMode
from skipway.trace.batch import Call, copied, tensors_of, unwrapped
from skipway.units.intercept import intercepted
from skipway.units.locate import locate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from skipway.diagnostics.finding import Finding
    from skipway.trace.batch import Batch
    from skipway.units.describe import Described
    from skipway.units.locate import Located
    from skipway.units.unit import Unit

__all__ = ["Monitor"]

_LOG: Final = logging.getLogger("skipway.monitor")
_WHOLE: Final = -1
_NOT_FOUND: Final = "the residual units could not be found"
_NOT_WATCHED: Final = "the optimizer cannot be watched"


class _Measurement:
    """A measured step from the call of the model to the end of the step."""

    def __init__(self, sample: Sample, update: UpdateWatch) -> None:
        self.sample, self.update = sample, update

    def close(self) -> None:
        self.sample.let_go()
        self.update.close()


class Monitor:
    """Measure the signal along the stream every few steps of a training, and name what goes wrong; it stops nothing.

    ::

        with skipway.Monitor(model, every=25, log=writer, optimizer=optimizer) as monitor:
            for x, y in loader:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
                monitor.step()

    Or without ``with``: make it, call `step` behind each optimizer step, and `close` at the end.

    At a measured step the first call of the model that builds a graph is read, as `skipway.inspect` reads it: one
    transfer from the device for all numbers. At all other steps the model runs untouched. Steps 0, `every`,
    2·`every` … are measured. The first measured call finds the units first, on a copy of its own arguments: two more
    forward runs, once. Training goes on bit by bit as it would without.

    * Mixed precision: numbers are those of the tensors as they are under autocast; gradients are divided by the factor
      of the `torch.amp.GradScaler` that scales the loss, which is found by itself.
    * Gradient accumulation: call `step` once for each step of the optimizer. The first of its micro-batches is
      measured; the gradient is that of what ``backward`` was called on for it, with whatever you divide it by.
    * DDP: each rank measures its own samples, before gradients are averaged. Make a monitor on every rank, log on one.
    * `torch.compile`: either order. From the end of the step before until the model has been called, a measured step
      runs eagerly. A model that is compiled behind the monitor's back before its first call is measured one step later.
    * Activation checkpointing: what runs twice is counted once.

    What goes wrong in measuring is logged once (logger ``skipway.monitor``), and the monitor then switches itself off;
    what the model raises passes unchanged.

    Args:
        model: any module; DDP and compiled wrappers are opened. It has to be called, ``model(x)``, not its ``forward``.
        every: a step in so many is measured.
        log: an object with ``log(dict, step)`` or ``log_metrics(dict, step)``, TensorBoard's ``SummaryWriter``, or a
            function of a dict and a step. The keys are those of `Record.summary`.
        optimizer: one or several; needed for update/weight. The weights of all branches are copied before its step.
        batch: what the units are found on, instead of the first call's arguments.
        samples: so many samples, the first of the batch, are looked at; the numbers are exact for them. Samples lie
            along the dimension that is as long as the first one of the first tensor that the model is called with.
        keep: so many records are kept in `history`.

    Attributes:
        units: the residual units; empty until they are found.
        history: records of the measured steps, at most `keep`.
        findings: what went wrong, each rule once for a unit: ``non-finite``, ``gradient-vanishing``,
            ``gradient-exploding``, ``fp16-headroom``, ``rank-collapse``, ``dead-unit``. Also logged, as warnings.
        active: False once it is closed or has switched itself off.

    Raises:
        SkipwayError: an argument is of the wrong kind or size.
        ModelRunError: the model failed on `batch`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 25,
        log: Any = None,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        batch: Batch | None = None,
        samples: int = 16,
        keep: int = 1000,
    ) -> None:
        self._every, self._samples = _positive("every", every), _positive("samples", samples)
        self._sink = sink(log)
        self._optimizers = _optimizers(optimizer)
        self._model = _single(model)
        self.units: list[Unit] = []
        self.history: deque[Record] = deque(maxlen=_positive("keep", keep))
        self.findings: list[Finding] = []
        self.active = True
        self._step = 0
        self._described: list[Described] = []
        self._parameters: list[list[nn.Parameter]] = []
        self._located: Located | None = None
        self._watch: Watch | None = None
        self._measurement: _Measurement | None = None
        self._find_on: Call | None = None
        self._said_uncalled = False
        self._call, self._scale = NextCall(self._model, self._called), ScaleWatch()
        if batch is not None:
            self._find(batch)
        if self.active:
            self._wait()

    @property
    def latest(self) -> Record | None:
        """The last record, None before the first."""
        return self.history[-1] if self.history else None

    def step(self) -> None:
        """Say that a step of the training is over; to be called behind the optimizer's step."""
        if not self.active:
            return
        measurement, self._measurement = self._measurement, None
        if measurement is not None:
            self._call.leave()  # another one that intercepted the call may have put it back
            measurement.sample.attempt(self._finish, measurement)
            measurement.close()
            self._scale.close()
            if measurement.sample.failure is not None:
                self._switch_off("measuring or logging failed", measurement.sample.failure)
                return
        elif self._call.in_vain and not self._said_uncalled:
            self._said_uncalled = True
            _LOG.warning(
                "step %d is not measured: the model was not called with gradients; call model(x), not "
                "model.forward(x), and step() once behind each step of the optimizer",
                self._step,
            )
        self._step += 1
        found_late = self._find_late()
        if self.active and (found_late or self._step % self._every == 0 or self._call.waits or self._call.passed):
            self._wait()

    def close(self) -> None:
        """End measuring; the model is as it was before."""
        self.active = False
        self._call.leave()
        self._scale.close()
        if self._measurement is not None:
            self._measurement.close()
            self._measurement = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self) -> None:
        """Measure the next call. ``scaler.scale(loss(model(x)))`` looks `scale` up before it calls the model."""
        self._call.wait()
        self._scale.open()

    def _find(self, batch: Batch) -> None:
        """Find the units on a batch."""
        # Autocast keeps weights that it has cast; those of a run without gradients would cut later runs' gradients off.
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the training's own call gives them
                located = locate(self._model, batch, proofs=True)
        finally:
            torch.set_autocast_cache_enabled(cached)
        self._described, self.units, _ = judge(located.found, located.described, located.proofs, skipped=False)
        if not self.units:
            self._switch_off("no residual unit was found")
            return
        self._located, self._watch = located, Watch(located, self.units)
        self._parameters = branch_parameters(self._described, located.links, self._model)

    def _find_late(self) -> bool:
        """Find the units on a call that somebody else was intercepting, now that it is over."""
        batch, self._find_on = self._find_on, None
        if batch is None:
            return False
        try:
            self._find(batch)
        except Exception as error:  # noqa: BLE001  # as in `_called`
            self._switch_off(_NOT_FOUND, error)
        return True

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model in a training call that is to be measured."""
        if self._located is None:
            if any(isinstance(mode, AddressedMode) for mode in _get_current_function_mode_stack()):
                self._find_on = Call(copied(args), copied(kwargs))
                return self._model(*args, **kwargs)
            try:
                self._find(Call(args, kwargs))
            except Exception as error:  # noqa: BLE001  # measuring must not stop a training
                output = self._model(*args, **kwargs)  # raises what the model raises by itself
                self._switch_off(_NOT_FOUND, error)
                return output
        if self._located is None:
            return self._model(*args, **kwargs)
        first = next((t for t in tensors_of((args, kwargs)) if t.dim()), None)
        sample = Sample(self._samples if first is None else len(first), self._samples)
        self._scale.factor = None
        with intercepted(self._model, reading_plan(self._described, self._located.links, sample)):
            output = self._model(*args, **kwargs)
        try:
            self._measurement = _Measurement(sample, UpdateWatch(self._optimizers, self._parameters))
        except Exception as error:  # noqa: BLE001  # as above
            self._switch_off(_NOT_WATCHED, error)
        return output

    def _finish(self, measurement: _Measurement) -> None:
        """Read all numbers at once, keep them, judge them and pass them on."""
        sample = measurement.sample
        measurement.update.finish(sample)
        if self._scale.factor is not None:
            sample.put(_WHOLE, "scale", self._scale.factor)
        numbers = sample.read()
        scale = numbers.get(_WHOLE, {}).get("scale")
        record = Record(step=self._step, units=readings(self.units, numbers, scale), scale=scale)
        self.history.append(record)
        for finding in self._watch.look(record) if self._watch else ():
            self.findings.append(finding)
            _LOG.warning(
                "step %d: %s at %s: %s; try: %s", self._step, finding.rule, finding.path, finding.message, finding.fix
            )
        if self._sink is not None:
            self._sink(record.summary(), self._step)

    def _switch_off(self, why: str, error: Exception | None = None) -> None:
        self.close()
        reason = f": {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}" if error else ""
        _LOG.warning("the monitor switches itself off at step %d: %s%s", self._step, why, reason)


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SkipwayError(f"{name}={value!r}", "a whole number from 1")
    return value


def _optimizers(given: Any) -> list[torch.optim.Optimizer]:
    several = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for one in several:
        if not isinstance(one, torch.optim.Optimizer):
            raise SkipwayError(
                f"optimizer of type {type(one).__name__}", "a torch.optim.Optimizer, or several in a list"
            )
    return [_innermost(one) for one in several]


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The one that steps, inside of wrappers that need not be set up as optimizers are."""
    inner = vars(optimizer).get("optimizer")
    return _innermost(inner) if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer else optimizer


def _single(model: nn.Module) -> nn.Module:
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise SkipwayError(
            f"DataParallel over {len(model.device_ids)} devices: it runs copies of the model",
            "the model itself on one device, or DistributedDataParallel",
            "model.module",
        )
    return unwrapped(model)
