"""`skipway.prove`: train a copy as it is and a copy under the fix, and say whether the fix mends it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from skipway.diagnostics.finding import Finding
from skipway.errors import SkipwayError
from skipway.study.proving.calling import called
from skipway.study.proving.proof import AS_IT_IS, Arm, Proof, judge_arms
from skipway.study.proving.remedies import Remedy, possible, provable_rules, remedies_for
from skipway.study.proving.trial import TrialSettings, Watcher, train_once
from skipway.study.proving.trial_task import Task, task_for
from skipway.trace.batch import Batch, unwrapped
from skipway.trace.preserve import preserved
from skipway.units.locate import locate

if TYPE_CHECKING:
    from skipway.diagnostics.inspection import Inspection

__all__ = ["prove"]

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
Data = Callable[[int], Iterable[tuple[Any, torch.Tensor]]]


def prove(  # noqa: PLR0913  # one for each thing that a caller may bring
    inspection: Inspection,
    finding: Finding | str,
    *,
    model: nn.Module | Callable[[], nn.Module],
    batch: Batch,
    fix: nn.Module | Callable[[], nn.Module] | None = None,
    data: Data | None = None,
    loss: Loss | None = None,
    settings: TrialSettings | None = None,
    watcher: Watcher | None = None,
) -> Proof:
    """Put a finding to the test: train the model as it is and under each fix, and compare the losses, paired by seed.

    Every run starts from a copy and sees the same data for the same seed; the model itself is not touched. Fixes are
    made without a change of the code: by altering units while they train (`skipway.what_if`), by other initial weights,
    or by `fix`, the changed model. Adam without warm-up.

    Args:
        inspection: what `skipway.inspect` found.
        finding: one of its findings, or a rule id.
        model: the inspected model, copied for each run (all seeds then share its initial weights and differ in data),
            or a function that makes one, called for each seed after seeding.
        batch: what the model is called with.
        fix: the changed model, or a function that makes it, to be tried instead of the built-in fixes.
        data: gives batches ``(inputs, targets)`` for a seed, what the model is called with (like `batch`: a tensor, a
            tuple of positional arguments or a dict of keyword arguments) and what `loss` is given;
            without it a synthetic task for tokens or the embedded digits for images, and the report says so.
        loss: ``loss(output, targets)``, a scalar; with `data` only.
        settings: steps, batch size, learning rate, seeds; 3 seeds of 150 steps of 64 at 1e-3 by default.
        watcher: is told how it goes on.

    Returns:
        Losses of all runs, and for each fix the verdict "confirmed", "not confirmed" or "not decidable in this budget".

    Raises:
        SkipwayError: no fix of this finding can be tried, no task fits the model, or an argument is of the wrong kind.
        ModelRunError: the model raised; its own error is the cause.
    """
    rule = finding.rule if isinstance(finding, Finding) else finding
    if (data is None) != (loss is None):
        raise SkipwayError("one of data and loss without the other", "both, or neither")
    settings = settings or TrialSettings()
    watcher = watcher or Watcher()
    started = time.perf_counter()
    source: nn.Module | Callable[[], nn.Module] = unwrapped(model) if isinstance(model, nn.Module) else model
    remedies = [] if fix is not None else remedies_for(rule, inspection)
    if not remedies and fix is None:
        raise _nothing_to_try(rule)
    probe = source if isinstance(source, nn.Module) else source()
    task = _own_task(probe, data, loss) if data and loss else task_for(probe, batch, batch_size=settings.batch_size)
    remedies, left_out = _where_possible(remedies, probe, batch)
    arms: list[tuple[str, nn.Module | Callable[[], nn.Module], Remedy | None]] = [(AS_IT_IS, source, None)]
    arms += [(r.name, source, r) for r in remedies]
    if fix is not None:
        arms.append(("the changed model", fix, None))
    watcher.started(arms=[name for name, *_ in arms], seeds=settings.seeds, steps=settings.steps, task=task.words)
    found = tuple(
        Arm(
            name=name,
            courses=tuple(
                train_once(made, batch, task, remedy, seed, settings, watcher, name=name)
                for seed in range(settings.seeds)
            ),
        )
        for name, made, remedy in arms
    )
    notes = left_out
    if isinstance(source, nn.Module):
        notes.insert(0, "all seeds start from the given weights: they differ in data (a factory would draw new ones)")
    return Proof(
        rule=rule,
        model=inspection.model,
        task=task.words,
        chance=task.chance,
        settings=asdict(settings),
        arms=found,
        verdicts=judge_arms(found, task.chance),
        seconds=time.perf_counter() - started,
        notes=tuple(notes),
    )


def _where_possible(remedies: list[Remedy], model: nn.Module, batch: Batch) -> tuple[list[Remedy], list[str]]:
    """The fixes without the units that they cannot be made at, and words on what was left out."""
    if not any(r.partial for r in remedies):
        return remedies, []
    with preserved(model):
        model.train()  # units are altered as the trials find them
        located = locate(model, batch, proofs=True)
    found = [possible(r, located, batch) if r.partial else r for r in remedies]
    notes = []
    for remedy, rest in zip(remedies, found, strict=True):
        if missing := [path for path in remedy.changes if path not in rest.changes]:
            notes.append(f"{remedy.name}: not at {', '.join(missing)}, where that cannot be")
    return found, notes


def _own_task(model: nn.Module, data: Data, loss: Loss) -> Task:
    """The caller's data; what the untrained model gets on the first batch counts as the loss of guessing."""

    def batches(seed: int) -> Iterator[tuple[Any, torch.Tensor]]:
        while True:
            empty = True
            for pair in data(seed):
                empty = False
                yield pair
            if empty:
                raise SkipwayError("data(seed) gave no batch", "batches (inputs, targets)")

    with torch.no_grad():
        inputs, targets = next(batches(0))
        chance = float(loss(called(copy.deepcopy(model), inputs), targets))
    return Task(words="your data", chance=chance, fit=lambda m: m, batches=batches, loss=loss)


def _nothing_to_try(rule: str) -> SkipwayError:
    return SkipwayError(
        f"no fix of {rule!r} can be tried without a change of the code",
        "a finding of " + ", ".join(provable_rules()),
        "the changed model as fix=",
    )
