"""Training speed of a model, measured alone: nothing else runs, all cores are its own."""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.cores import cores
from skipway.data import open_data
from skipway.models.load_for import load_for_run
from skipway.train.check import check_trainable
from skipway.train.evaluate import cross_entropy
from skipway.train.hardware import environment, resolve_layout
from skipway.train.optimizer import build_optimizer
from skipway.train.strategy import make_fabric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor

    from skipway.data import Dataset
    from skipway.spec import DataSpec, RunSpec

__all__ = ["Bench", "measure_speed", "threads_and_generators", "timed"]

WARM_UP: Final = 3
STEPS: Final = 20
FEWEST: Final = 2
# Of warm-up and of measuring; a step that is longer than that is timed twice all the same.
LONGEST_SEC: Final = (1.0, 3.0)


def measure_speed(spec: RunSpec) -> dict[str, Any]:
    """Time whole training steps, data included: a few to warm up, then up to twenty or three seconds.

    The generators and the number of threads are as they were, afterwards.

    Args:
        spec: of the run whose model, data, recipe and precision are measured.

    Returns:
        ``samples_per_sec`` and ``step_sec`` (of the median step), ``step_sec_low`` and ``step_sec_high`` (quartiles),
        ``steps``, ``batch_size``, and on what: ``threads``, ``device``, ``processor``, ``precision``, ``torch`` …
    """
    with threads_and_generators(cores()):
        bench = Bench(spec)
        batches = bench.batches(spec.recipe.batch_size)
        timed(lambda: bench.step(batches), most=WARM_UP, fewest=1, longest_sec=LONGEST_SEC[0])
        taken = timed(lambda: bench.step(batches), most=STEPS, fewest=FEWEST, longest_sec=LONGEST_SEC[1])
        low, median, high = statistics.quantiles(taken, n=4, method="inclusive")
        return {
            "samples_per_sec": spec.recipe.batch_size / median,
            "step_sec": median,
            "step_sec_low": low,
            "step_sec_high": high,
            "steps": len(taken),
            "batch_size": spec.recipe.batch_size,
            **bench.facts(),
        }


@contextmanager
def threads_and_generators(threads: int) -> Iterator[None]:
    """Inside, so many threads are used; afterwards their number and the generators are as they were."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(before)


class Bench:
    """A net with its data and its optimiser, ready for training steps as a run makes them.

    Args:
        spec: of the run.
        opened: opens the data set.

    Raises:
        SkipwayError: the net does not fit the data.
    """

    def __init__(self, spec: RunSpec, opened: Callable[[DataSpec, torch.device], Dataset] | None = None) -> None:
        self.spec = spec
        self.fabric = make_fabric(spec)
        device = self.fabric.device
        self.data = open_data(spec.data, device=device) if opened is None else opened(spec.data, device)
        torch.manual_seed(spec.seed)
        info = self.data.info
        self.net = load_for_run(spec, num_classes=info.num_classes, input_shape=info.input_shape)
        self.net.to(device)
        check_trainable(self.net, self.data, spec.recipe.batch_size)
        self._channels_last = resolve_layout(spec.channels_last, self.net)
        if self._channels_last:
            self.net.to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(self.net, spec.recipe.optimizer, fused=True)
        self._model = self.fabric.setup_module(self.net)
        self._optimizer: Any = self.fabric.setup_optimizers(self.optimizer)
        self._model.train()

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Training batches as a run sees them."""
        return self.data.train(batch_size=batch_size, seed=self.spec.seed)

    def step(
        self, batches: Iterator[tuple[Tensor, Tensor]], *, around: AbstractContextManager[Any] | None = None
    ) -> float:
        """One training step, in seconds, the making of its batch included.

        Args:
            batches: the next one is taken.
            around: held open while the net and its loss are computed, not in the backward pass.
        """
        start = time.perf_counter()
        x, y = next(batches)
        with around or nullcontext():
            loss = cross_entropy(self._model(x), y, self.spec.recipe.label_smoothing)
        self._optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        self._optimizer.step()
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize(self.fabric.device)
        return time.perf_counter() - start

    def facts(self) -> dict[str, Any]:
        """What it runs on and with."""
        return environment(self.spec, fabric=self.fabric, channels_last=self._channels_last)


def timed(step: Callable[[], float], *, most: int, fewest: int, longest_sec: float) -> list[float]:
    """Seconds of some steps.

    Args:
        step: makes one and gives its seconds.
        most: steps.
        fewest: steps, however long they take.
        longest_sec: no further step begins after so many seconds.
    """
    taken: list[float] = []
    while len(taken) < fewest or (len(taken) < most and sum(taken) < longest_sec):
        taken.append(step())
    return taken
