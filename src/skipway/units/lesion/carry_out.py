"""What a model loses without some of its units: deleted by interception, or exchanged; the model stays as it was.

Shapes: N samples, L units.
"""

from __future__ import annotations

import platform
import time
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from skipway.errors import ModelRunError, SkipwayError, UnknownNameError
from skipway.trace.batch import call_arguments, copied, describe, tensors_of, unwrapped
from skipway.trace.modules import eager
from skipway.trace.preserve import preserved
from skipway.units.lesion.blocks import BlockSites
from skipway.units.lesion.metric import Measure, Metric, Sample, measure_of
from skipway.units.lesion.prefix import Prefix
from skipway.units.lesion.record import Lesion, LesionRun, LesionUnit
from skipway.units.lesion.sites import Sites, UnitSites
from skipway.units.lesion.swap import exchanged
from skipway.units.lesion.trials import Delete, Swap, Trial, trials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import nn

    from skipway.trace.batch import Batch

__all__ = ["lesion"]

_MODES: Final = ("eval", "train")


def lesion(  # noqa: PLR0913  # one argument for each thing that can be chosen
    model: nn.Module,
    batch: Batch | None = None,
    metric: Metric | None = None,
    *,
    loss: Callable[..., Any] | None = None,
    data: Iterable[tuple[Batch, Any]] | None = None,
    batches: int | None = None,
    delete: Delete = "each",
    draws: int = 10,
    swap: Swap = False,
    blocks: str | Sequence[str] | None = None,
    mode: Literal["eval", "train"] = "eval",
    reuse: bool = True,
    seed: int = 0,
    name: str | None = None,
) -> Lesion:
    """The change of a metric when units are deleted: ``x' = f( h(x) + s·F(x) )`` becomes ``x' = f( h(x) )``.

    Nothing is trained or written: the model is run without gradients, with the branch of a unit multiplied by 0 where
    it joins, and is left exactly as it was. A model whose stack says what its units are (all of ours) starts at the
    first altered unit from the state kept there, so that deleting each of L units costs about L/2 runs; the states of
    one batch are held meanwhile. Others run once in full for each deletion.

    Args:
        model: any module; DataParallel, DDP and compiled wrappers are opened.
        batch: what the model is called with: a tensor, a tuple of positional arguments or a dict of keyword arguments.
            The units are found on it. With `data` it may be left out: the first inputs are taken.
        metric: ``metric(output)``, with `data` ``metric(output, targets)``: a number, whichever way is better. Or
            ``"error"``: wrong classes in percent, the default with `data`, targets below 0 (−100) left out;
            ``"change"``: ``‖Δout‖/‖out‖`` over all floating outputs, dimensionless, the default without;
            ``"influence"``: block influence only, nothing is deleted.
        loss: a metric by another name; give one of the two.
        data: labelled batches, (inputs, targets) each; values are means over samples.
        batches: take so many of them at most.
        delete: ``"each"`` by itself; a number k, or several: k random units, `draws` times; a list of paths: these
            together; ``"each"`` may stand in a list with either; None: nothing.
        draws: random choices for each k, all different.
        swap: True: each unit with the next of its structure; a number k, or several: k random swaps one after the
            other, `draws` times, with Kendall's τ of the order that results; a list of pairs of paths.
        blocks: for nets without units: paths of modules to be replaced by the identity, or ``"auto"``: modules of one
            class in a row that keep their shape. Those that change it are listed and stay.
        mode: the model's mode; in train mode each run draws the same random numbers.
        reuse: whether to start at the state before the first altered unit, where that is possible.
        seed: of the draws.
        name: what to call the model in the report; its class by default.

    Raises:
        SkipwayError: no units; a unit that cannot be deleted, or two that cannot be swapped; a metric that gives no
            number.
        UnknownNameError: no such unit, block or metric.
        ModelRunError: the model raised; its own error is the cause.

    Source: deletion and reordering, arXiv 1605.06431; block influence, arXiv 2403.03853.
    """
    if mode not in _MODES:
        raise UnknownNameError("mode", mode, _MODES)
    measure = measure_of(metric, loss, labelled=data is not None)
    started = time.perf_counter()
    inner = unwrapped(model)
    samples = _samples(batch, data, batches)
    first = next(samples, None)
    if first is None:
        raise SkipwayError("data without a batch", "at least one (inputs, targets)")
    found_on = first.batch if batch is None else batch
    with torch.inference_mode(mode=False), torch.no_grad(), preserved(inner), eager():
        inner.train(mode == "train")
        sites: Sites = UnitSites(inner, found_on) if blocks is None else BlockSites(inner, found_on, blocks)
        planned = [] if measure is None else trials(sites, delete, swap, draws, seed)
        work = _Work(inner, sites, planned, measure, reuse=reuse and mode == "eval" and not sites.writes_parameters)
        for sample in chain([first], samples):
            work.add(sample)
    return Lesion(
        model=name or type(inner).__name__,
        mode=mode,
        batch=describe(found_on),
        metric=measure.words if measure is not None else "block influence",
        unit=measure.unit if measure is not None else "",
        what=sites.what,
        baseline=work.value(0),
        samples=work.samples,
        units=tuple(
            LesionUnit(path=s.path, changes_shape=s.changes_shape, influence=s.influence.value, kept=s.kept)
            for s in sites.sites.values()
        ),
        runs=tuple(work.runs()),
        reused=work.reused,
        forwards=work.forwards,
        seed=seed,
        notes=tuple(work.notes),
        environment={
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": str(next((p.device for p in inner.parameters()), "cpu")),
        },
        seconds=time.perf_counter() - started,
    )


def _samples(batch: Batch | None, data: Iterable[tuple[Batch, Any]] | None, batches: int | None) -> Iterator[Sample]:
    if batches is not None and (isinstance(batches, bool) or not isinstance(batches, int) or batches < 1):
        raise SkipwayError(f"batches={batches!r}", "a number of batches, at least 1, or None for all")
    if data is None:
        if batch is None:
            raise SkipwayError("neither batch nor data", "what the model is called with", "lesion(model, batch)")
        yield Sample(batch, None, _size(batch))
        return
    for item in islice(data, batches):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise SkipwayError(f"data gave a {type(item).__name__}", "pairs of inputs and targets")
        inputs, targets = item
        size = len(targets) if isinstance(targets, torch.Tensor) and targets.dim() else _size(inputs)
        if size:
            yield Sample(inputs, targets, size)


def _size(batch: Batch) -> int:
    """Samples in a batch: the first length of its first tensor that has one."""
    args, kwargs = call_arguments(batch)
    return next((len(t) for t in tensors_of((args, kwargs)) if t.dim()), 1)


class _Work:
    """Runs every trial on every batch and adds up."""

    def __init__(
        self, model: nn.Module, sites: Sites, planned: list[Trial], measure: Measure | None, *, reuse: bool
    ) -> None:
        self._model, self._sites, self._trials, self._measure = model, sites, planned, measure
        self._prefix = Prefix.find(model) if reuse and planned else None
        self._sums = [[0.0, 0.0] for _ in range(1 + len(planned))]
        self.samples = 0
        self._cost = 0.0
        self.notes: list[str] = []

    @property
    def forwards(self) -> float:
        """Runs of the whole model over all samples."""
        return self._cost / self.samples

    @property
    def reused(self) -> bool:
        """Whether states were reused."""
        return self._prefix is not None

    def add(self, sample: Sample) -> None:
        """One batch through the whole model, and through it under every trial."""
        prefix = self._prefix
        self.samples += sample.size
        with self._sites.watched(), prefix.kept() if prefix is not None else nullcontext():
            whole, drew = self._run(sample)
        self._count(0, whole, sample, whole)
        self._cost += sample.size
        if drew and prefix is not None:  # left-out units would draw no numbers
            prefix = self._prefix = None
            self.notes.append("the model draws random numbers in eval mode: every run was a whole one")
        for k, trial in enumerate(self._trials, 1):
            start = min((prefix.index(u) for u in trial.units), default=0) if prefix is not None else 0
            with self._altered(trial), prefix.reused(start) if prefix is not None else nullcontext():
                output, _ = self._run(sample)
            self._cost += sample.size * (1 - start / len(prefix) if prefix is not None else 1)
            self._count(k, output, sample, whole)

    @contextmanager
    def _altered(self, trial: Trial) -> Iterator[None]:
        if trial.kind == "deleted":
            with self._sites.without(trial.units):
                yield
            return
        sites = self._sites.sites
        with exchanged([(sites[a].content, sites[b].content) for a, b in trial.pairs]):
            yield

    def _run(self, sample: Sample) -> tuple[Any, bool]:
        """The output, and whether random numbers were drawn."""
        args, kwargs = call_arguments(sample.batch)
        with preserved(self._model, parameters=self._sites.writes_parameters) as snapshot:
            try:
                output = self._model(*copied(args), **copied(kwargs))
            except SkipwayError:
                raise
            except Exception as error:
                raise ModelRunError(
                    f"the model failed on {describe(sample.batch)}: {type(error).__name__}: {error}",
                    "inputs that the model runs on, also without the unit",
                ) from error
            return output, bool(snapshot.drawn_from)

    def _count(self, k: int, output: Any, sample: Sample, whole: Any) -> None:
        if self._measure is None:
            return
        value, weight = self._measure.parts(output, sample, whole)
        self._sums[k][0] += value
        self._sums[k][1] += weight

    def value(self, k: int) -> float:
        """Of the whole model (0), or of trial k − 1."""
        return self._measure.result(*self._sums[k]) if self._measure is not None else float("nan")

    def runs(self) -> Iterator[LesionRun]:
        """The results, in order."""
        whole = self.value(0)
        for k, trial in enumerate(self._trials, 1):
            value = self.value(k)
            yield LesionRun(
                kind=trial.kind, units=trial.units, value=value, change=value - whole, count=trial.count,
                draw=trial.draw, kendall=trial.kendall,
            )  # fmt: skip
