"""Short trainings of one model as it is and under fixes: the same seeds, the same data."""

from __future__ import annotations

import copy
import math
import statistics
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from skipway.diagnostics.monitor.reader import Sample, reading_plan
from skipway.errors import SkipwayError
from skipway.study.proving.calling import called
from skipway.trace.preserve import preserved
from skipway.units.intercept import Plan, intercepted
from skipway.units.kinds import kinds, levels
from skipway.units.locate import locate
from skipway.units.what_if import plan_alterations

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.study.proving.remedies import Remedy
    from skipway.study.proving.trial_task import Task
    from skipway.trace.batch import Batch
    from skipway.units.locate import Located

__all__ = ["Course", "TrialSettings", "Watcher", "train_once"]

_DIVERGED: Final = 1e6


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """How long and how a model is trained.

    Args:
        steps: optimizer steps of a run.
        batch_size: samples in a step.
        lr: learning rate of Adam, constant, without warm-up.
        seeds: runs of each way.

    Raises:
        SkipwayError: a number that makes no sense.
    """

    steps: int = 150
    batch_size: int = 64
    lr: float = 1e-3
    seeds: int = 3

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise SkipwayError(f"seeds={self.seeds}", "at least 2: one run shows no spread")
        if self.steps < 1 or self.batch_size < 1 or not self.lr > 0:
            given = f"steps={self.steps}, batch_size={self.batch_size}, lr={self.lr}"
            raise SkipwayError(given, "at least one step of one sample, and a positive learning rate")


@dataclass(frozen=True, kw_only=True)
class Course:
    """One training.

    Args:
        seed: of the weights (where a factory makes the model), of what the task puts around it, and of the data.
        losses: training loss at each step; shorter than asked for where the run diverged.
        final: mean of the last tenth of the losses; where it diverged, the larger of the first loss and the last, which
            a proof counts as guessing.
        gradient_ratio: norm of the gradient with respect to the stream at the first unit over that at the last, before
            the first step; None where unknown.
        similarity: mean cosine between different tokens (or channels) behind the last unit, before the first step.
        diverged: whether the loss left the finite numbers, or 10⁶.
    """

    seed: int
    losses: tuple[float, ...]
    final: float
    gradient_ratio: float | None = None
    similarity: float | None = None
    diverged: bool = False


class Watcher:
    """Is told how a proof goes on; the base class is deaf."""

    def started(self, *, arms: list[str], seeds: int, steps: int, task: str) -> None:
        """The trainings begin: what will be trained, how often and how long, and on what."""

    def moved(self, arm: str, seed: int, step: int, loss: float) -> None:
        """A step was made."""


def train_once(
    source: nn.Module | Callable[[], nn.Module],
    batch: Batch,
    task: Task,
    remedy: Remedy | None,
    seed: int,
    settings: TrialSettings,
    watcher: Watcher,
    *,
    name: str,
) -> Course:
    """Train a fresh copy of a model, under a remedy or as it is.

    Args:
        source: the model, which is copied, or a function that makes one.
        batch: what its units are found on.
        task: what it is trained on.
        remedy: the fix to try; None trains it as it is.
        seed: seed of the run.
        settings: how long and how.
        watcher: is told of every step.
        name: what this way of training is called.

    Raises:
        ModelRunError: the model raised; its own error is the cause.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = copy.deepcopy(source) if isinstance(source, nn.Module) else source()
        model.train()
        if remedy is not None and remedy.prepare is not None:
            remedy.prepare(locate(model, batch))
        torch.manual_seed(seed)
        fitted = task.fit(model)
        fitted.train()
        optimizer = torch.optim.Adam([p for p in fitted.parameters() if p.requires_grad], settings.lr)
        changes = {} if remedy is None else remedy.changes
        located = locate(model, batch, proofs=bool(changes))
        plan = plan_alterations(located, changes, batch) if changes else Plan()
        ratio, similarity = _signs(fitted, located, plan, task, seed)
        losses: list[float] = []
        with intercepted(model, plan) if changes else nullcontext():
            for step, (inputs, targets) in zip(range(settings.steps), task.batches(seed), strict=False):
                loss = task.loss(called(fitted, inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
                watcher.moved(name, seed, step, losses[-1])
                if not abs(losses[-1]) < _DIVERGED:
                    break
    diverged = not abs(losses[-1]) < _DIVERGED
    if diverged:
        final = max(losses[0], losses[-1]) if math.isfinite(losses[-1]) else losses[0]
    else:
        final = statistics.fmean(losses[-max(settings.steps // 10, 1) :])
    return Course(
        seed=seed, losses=tuple(losses), final=final, gradient_ratio=ratio, similarity=similarity, diverged=diverged
    )


def _signs(
    fitted: nn.Module, located: Located, altered: Plan, task: Task, seed: int
) -> tuple[float | None, float | None]:
    """Gradient of the first unit over that of the last, and similarity behind the last, on the first batch."""
    inputs, targets = next(task.batches(seed))
    units = [
        k for k, level in enumerate(levels(located.described, kinds(located.described, located.links))) if not level
    ]
    sample = Sample(len(targets), len(targets))
    reading = reading_plan(located.described, located.links, sample)
    # The reading goes first, so that it reads what the alteration makes.
    with (
        preserved(fitted, parameters=located.writes_parameters),
        intercepted(located.model, reading),
        intercepted(located.model, altered),
        torch.enable_grad(),
    ):
        loss = task.loss(called(fitted, inputs), targets)
        torch.autograd.grad(loss, [p for p in fitted.parameters() if p.requires_grad], allow_unused=True)
    numbers = sample.read()
    if not units or sample.failure is not None:
        return None, None
    first, last = (numbers.get(k, {}) for k in (units[0], units[-1]))
    a, b = first.get("grad_stream"), last.get("grad_stream")
    return (a / b if a is not None and b else None), last.get("similarity")
