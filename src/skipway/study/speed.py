"""Training speed of a model, measured alone: nothing else runs, all cores are its own."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.data import open_data
from skipway.models.load_for import load_for
from skipway.study.machine import cores
from skipway.train.check import check_trainable
from skipway.train.evaluate import cross_entropy
from skipway.train.hardware import environment, resolve_layout
from skipway.train.optimizer import build_optimizer
from skipway.train.strategy import make_fabric

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.spec import RunSpec

__all__ = ["measure_speed"]

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
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    try:
        with torch.random.fork_rng():
            return _measured(spec)
    finally:
        torch.set_num_threads(before)


def _measured(spec: RunSpec) -> dict[str, Any]:
    fabric = make_fabric(spec)
    data = open_data(spec.data, device=fabric.device)
    torch.manual_seed(spec.seed)
    net = load_for(spec.model, num_classes=data.info.num_classes, input_shape=data.info.input_shape, memory=spec.memory)
    net.to(fabric.device)
    check_trainable(net, data, spec.recipe.batch_size)
    channels_last = resolve_layout(spec.channels_last, net)
    if channels_last:
        net.to(memory_format=torch.channels_last)
    model = fabric.setup_module(net)
    optimizer: Any = fabric.setup_optimizers(build_optimizer(net, spec.recipe.optimizer, fused=True))
    batches = data.train(batch_size=spec.recipe.batch_size, seed=spec.seed)

    def step() -> float:
        start = time.perf_counter()
        x, y = next(batches)
        loss = cross_entropy(model(x), y, spec.recipe.label_smoothing)
        optimizer.zero_grad(set_to_none=True)
        fabric.backward(loss)
        optimizer.step()
        if fabric.device.type == "cuda":
            torch.cuda.synchronize(fabric.device)
        return time.perf_counter() - start

    model.train()
    _timed(step, most=WARM_UP, fewest=1, longest_sec=LONGEST_SEC[0])
    taken = _timed(step, most=STEPS, fewest=FEWEST, longest_sec=LONGEST_SEC[1])
    low, median, high = statistics.quantiles(taken, n=4, method="inclusive")
    facts = environment(spec, fabric=fabric, channels_last=channels_last)
    return {
        "samples_per_sec": spec.recipe.batch_size / median,
        "step_sec": median,
        "step_sec_low": low,
        "step_sec_high": high,
        "steps": len(taken),
        "batch_size": spec.recipe.batch_size,
        **facts,
    }


def _timed(step: Callable[[], float], *, most: int, fewest: int, longest_sec: float) -> list[float]:
    taken: list[float] = []
    while len(taken) < fewest or (len(taken) < most and sum(taken) < longest_sec):
        taken.append(step())
    return taken
