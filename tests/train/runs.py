"""Tiny runs, and what two runs are compared by."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from skipway.data import Dataset, open_data
from skipway.spec import DataSpec, OptimizerSpec, RecipeSpec, RunSpec, ScheduleSpec
from skipway.train.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.train.run import Run

__all__ = ["ADAMW", "TEXT", "FromData", "Noisy", "lines", "open_once", "tiny", "weights"]

TEXT: Final = DataSpec(name="text", context=32, train_size=2000, test_size=20)
ADAMW: Final = RecipeSpec(
    name="tiny-adamw",
    optimizer=OptimizerSpec(name="adamw", lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, decay="matrices"),
    schedule=ScheduleSpec(name="cosine", warmup=0.2, final=0.1),
    clip_norm=1.0,
)
_DIGITS: Final = DataSpec()
_SGD: Final = RecipeSpec(
    name="tiny-sgd",
    optimizer=OptimizerSpec(name="sgd", lr=0.1, nesterov=True, weight_decay=5e-4),
    schedule=ScheduleSpec(name="one-cycle", warmup=0.2, warmup_from=0.1),
)
_OPEN: dict[DataSpec, Dataset] = {}


def tiny(
    model: str = "resnet8",
    *,
    data: DataSpec = _DIGITS,
    recipe: RecipeSpec = _SGD,
    steps: int = 6,
    batch_size: int = 32,
    **changes: Any,
) -> RunSpec:
    """A run of seconds: no inspection, one thread, float32, checkpoints at the end only, unless told otherwise."""
    given: dict[str, Any] = {"threads": 1, "inspect": False, "precision": "32-true", "checkpoint_every": 0}
    return RunSpec(
        model=model,
        data=data,
        recipe=replace(recipe, steps=steps, batch_size=batch_size),
        **{**given, "log_every": 1, **changes},
    )


def open_once(spec: DataSpec) -> Dataset:
    """The data set, opened once in a process: reading the text takes longer than the runs."""
    return _OPEN.setdefault(spec, _OPEN.get(spec) or open_data(spec))


def weights(run: Run) -> bytes:
    """The file of final weights."""
    return run.folder.weights_path.read_bytes()


def lines(run: Run | RunFolder) -> list[dict[str, Any]]:
    """Metrics without what the clock says."""
    folder = run if isinstance(run, RunFolder) else run.folder
    return [{k: v for k, v in line.items() if k != "seconds"} for line in folder.read_metrics()]


class FromData(Dataset):
    """A data set that does something when it serves the batch of a step; by default it presses Ctrl-C.

    Args:
        inner: the data set.
        at: the step, from 0.
        action: what is done.
    """

    def __init__(self, inner: Dataset, at: int, action: Any = lambda: signal.raise_signal(signal.SIGINT)) -> None:
        self.inner, self.info, self.at, self.action = inner, inner.info, at, action

    def train(self, *, start: int = 0, **how: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for step, batch in enumerate(self.inner.train(start=start, **how), start):
            if step == self.at:
                self.action()
            yield batch

    def test(self, **how: Any) -> Iterator[tuple[Tensor, Tensor]]:
        return self.inner.test(**how)

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        return self.inner.sample(n)

    def _train(self, **how: Any) -> Iterator[tuple[Tensor, Tensor]]:
        raise NotImplementedError

    _test = _train


class Noisy(nn.Module):
    """A user's net that draws from all three global generators in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x.flatten(1)))
        if self.training:
            # Normal numbers come in pairs, of which the generators hold the second one.
            x = self.drop(x) * (1 + 0.1 * random.gauss(0, 1)) + 0.1 * float(np.random.randn())  # noqa: NPY002  # meant
        out: Tensor = self.last(x)
        return out
