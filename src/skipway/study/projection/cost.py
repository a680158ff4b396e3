"""What one training step of a net costs on this machine: operations, memory, seconds."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.models.memory import FEW, ActivationBytes, free_bytes, kept_bytes
from skipway.study.jobs.speed import Bench, threads_and_generators, timed
from skipway.trace.record import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.data import Dataset
    from skipway.spec import DataSpec, RunSpec

__all__ = ["StepCost", "step_cost"]

# A step that would take longer is measured on fewer samples.
_LONGEST_STEP_SEC: Final = 1.5
_STEPS: Final = 3
# Of the memory that is free, so that the machine stays usable.
_SHARE: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """One training step.

    Args:
        parameters: of the net.
        forward_flops: of one sample (a multiply-add counts 2).
        activation_bytes: what autograd keeps of a forward pass of the whole batch, worked out from few samples.
        weight_bytes: parameters and buffers.
        gradient_bytes: of the parameters.
        optimizer_bytes: the optimiser's state.
        step_sec: of a step of the whole batch.
        measured_batch: samples in the steps that were timed.
        batch_size: samples in a step of the run.
        input_shape: of one sample.
        data_note: where the samples are from.
        facts: what it was measured on and with.
    """

    parameters: int
    forward_flops: int
    activation_bytes: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    step_sec: float
    measured_batch: int
    batch_size: int
    input_shape: tuple[int, ...]
    data_note: str
    facts: dict[str, Any]

    @property
    def memory_bytes(self) -> int:
        """All of it together, what is at work inside single operations left out."""
        return self.activation_bytes + self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def training_flops(self) -> int:
        """Of a step: the backward pass costs twice the forward pass."""
        return 3 * self.forward_flops * self.batch_size


def step_cost(
    spec: RunSpec, *, threads: int, opened: Callable[[DataSpec, torch.device], Dataset] | None = None
) -> StepCost:
    """Build the net of a run and make a few steps, on fewer samples where whole ones would take long or much memory.

    Args:
        spec: of the run.
        threads: of the processor.
        opened: opens its data set.

    Raises:
        SkipwayError: the net does not fit the data.
    """
    with threads_and_generators(threads):
        bench = Bench(spec, opened)
        batch = spec.recipe.batch_size
        flops = _forward_flops(bench)
        few = (min(FEW[0], batch), min(FEW[1], batch))
        (fewer_sec, fewer), (few_sec, kept) = (_kept_step(bench, n) for n in few)
        activations = ActivationBytes.through((few[0], fewer), (few[1], kept))
        most = (_SHARE * free_bytes(bench.fabric.device) - activations.once) / activations.sample
        measured, seconds = _climbed(bench, few, (fewer_sec, few_sec), most=min(batch, most))
        parameters = list(bench.net.parameters())
        return StepCost(
            parameters=sum(p.numel() for p in parameters),
            forward_flops=flops,
            activation_bytes=activations.of(batch),
            weight_bytes=sum(t.nbytes for t in (*parameters, *bench.net.buffers())),
            gradient_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
            optimizer_bytes=sum(
                value.nbytes
                for state in bench.optimizer.state.values()
                for value in state.values()
                if isinstance(value, torch.Tensor)
            ),
            step_sec=seconds * batch / measured,
            measured_batch=measured,
            batch_size=batch,
            input_shape=bench.data.info.input_shape,
            data_note=bench.data.info.note,
            facts=bench.facts(),
        )


def _forward_flops(bench: Bench) -> int:
    """As ``skipway show`` counts them: in eval mode, operation by operation."""
    x, _ = bench.data.sample(1)
    bench.net.eval()
    try:
        return sum(node.flops for node in record(bench.net, x, addresses=False).graph.nodes)
    finally:
        bench.net.train()


def _kept_step(bench: Bench, samples: int) -> tuple[float, int]:
    """Seconds of a step, and the bytes that autograd keeps between its forward and its backward pass."""
    with kept_bytes(bench.net) as (watch, sizes):
        seconds = bench.step(bench.batches(samples), around=watch)
        return seconds, sum(sizes.values())


def _climbed(bench: Bench, sizes: tuple[int, int], seconds: tuple[float, float], *, most: float) -> tuple[int, float]:
    """Samples in the largest step that does not take long, and its seconds.

    A step of few samples may take hardly less than one of many; so the number is doubled as long as the last doubling
    lets expect a step that is short enough.

    Args:
        bench: makes the steps.
        sizes: samples of two steps that were made.
        seconds: that they took.
        most: samples that fit.
    """
    batch = bench.spec.recipe.batch_size
    (before, size), (before_sec, now) = sizes, seconds
    while size < batch:
        more = min(2 * size, batch)
        slope = max(0.0, now - before_sec) / max(1, size - before)
        if more > most or now + slope * (more - size) > _LONGEST_STEP_SEC:
            break
        before, before_sec = size, now
        size, now = more, bench.step(bench.batches(more))
    if now > _LONGEST_STEP_SEC:
        return size, now
    batches = bench.batches(size)
    taken = timed(lambda: bench.step(batches), most=_STEPS - 1, fewest=1, longest_sec=_LONGEST_STEP_SEC)
    return size, statistics.median([now, *taken])
