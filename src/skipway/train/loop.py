"""The training loop: everything that happens in a step, in the order in which it happens."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed.tensor import DTensor

from skipway.errors import ModelRunError, SkipwayError
from skipway.models.net import Net
from skipway.train.checkpoint import Position
from skipway.train.evaluate import Score, cross_entropy, score
from skipway.train.modes import set_training_
from skipway.train.optimizer import set_rate
from skipway.train.schedule import multiplier
from skipway.train.strategy import share_buffers_

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning_fabric import Fabric
    from torch import Tensor, nn

    from skipway.data import Dataset
    from skipway.spec import RunSpec
    from skipway.train.metrics import MetricsFile

__all__ = ["LAST_STEPS", "DivergedError", "Training", "train"]

# The training loss of a run is the mean over this many of its last steps, of short runs over a fifth of them: the first
# steps say nothing of where a training ended.
LAST_STEPS: Final = 50
_LAST_SHARE: Final = 5
# A test keeps no activations, so that it may take more samples at a time than a step of training.
_TEST_BATCH: Final = 500
_TEST_SHARE: Final = 4


class DivergedError(Exception):
    """The loss is not finite, or the weights behind a step are not.

    Args:
        step: the step whose loss it is.
        loss: its value.
        batch: inputs and targets of the last step.
    """

    def __init__(self, step: int, loss: float, batch: tuple[Tensor, Tensor]) -> None:
        super().__init__(f"loss {loss} at step {step}")
        self.step, self.loss, self.batch = step, loss, batch


@dataclass(kw_only=True)
class Training:
    """What a training runs on.

    Args:
        spec: what was asked for.
        fabric: devices, precision, communication.
        net: the module itself.
        model: the module as `Fabric.setup_module` returned it.
        optimizer: as `Fabric.setup_optimizers` returned it.
        data: the data set.
        metrics: where lines of metrics go; None on other ranks than the first.
        save: writes a checkpoint at a position.
        stopped: whether somebody wants the training to stop, asked behind each step.

    Attributes:
        recent: losses of the last steps.
    """

    spec: RunSpec
    fabric: Fabric
    net: nn.Module
    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Dataset
    metrics: MetricsFile | None
    save: Callable[[Position], None]
    stopped: Callable[[], bool]
    position: Position = field(default_factory=Position)
    recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.recent = deque(self.position.recent, max(1, min(LAST_STEPS, self.spec.recipe.steps // _LAST_SHARE)))

    def test(self) -> Score:
        """Loss and error over the test set."""
        fabric = self.fabric
        share_buffers_(fabric, self.net)
        size = min(_TEST_BATCH, _TEST_SHARE * self.spec.recipe.batch_size)
        batches = self.data.test(batch_size=size, rank=fabric.global_rank, world_size=fabric.world_size)
        return score(fabric, self.model, batches)


def train(run: Training) -> bool:
    """Train from where `run.position` stands to the end; False if somebody stopped it, behind a checkpoint.

    Raises:
        DivergedError: the loss or the weights are not finite. No checkpoint of that is written; the one before stays.
    """
    spec, fabric, recipe = run.spec, run.fabric, run.spec.recipe
    batches = run.data.train(
        batch_size=recipe.batch_size,
        seed=spec.seed,
        start=run.position.step,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    progress = run.net.stack.progress if isinstance(run.net, Net) else None
    # On a processor reading a number costs nothing; on an accelerator it waits, so losses are read in bundles.
    bundle = 1 if fabric.device.type == "cpu" else spec.log_every
    unread: list[Tensor] = []
    losses = list(run.position.pending)
    if run.position.untested:
        _tested(run, run.position.step)
    before, began = run.position.seconds, time.perf_counter()
    set_training_(run.net)

    for step in range(run.position.step, recipe.steps):
        x, y = next(batches)
        if progress is not None:
            progress.fill_(step / recipe.steps)
        share = multiplier(recipe.schedule, step, recipe.steps)
        set_rate(run.optimizer, share)

        with _of_the_model(f"step {step + 1}", x):
            loss = cross_entropy(run.model(x), y, recipe.label_smoothing)
        unread.append(loss.detach())
        if len(unread) == bundle:
            losses += _read(run, unread, step, (x, y))

        with _of_the_model(f"the backward pass of step {step + 1}", x):
            grad_norm = _updated(run, loss)

        done, last = step + 1, step + 1 == recipe.steps
        if done % spec.log_every == 0 or last:
            losses += _read(run, unread, step, (x, y))
            _write(run, {
                "step": done, "loss": math.fsum(losses) / len(losses), "lr": recipe.optimizer.lr * share,
                "seconds": round(before + time.perf_counter() - began, 3),
                **({} if grad_norm is None else {"grad_norm": float(grad_norm)}),
            })  # fmt: skip
            losses = []
        stop = _agreed(fabric, run.stopped(), done, spec.log_every)
        to_test = last or bool(spec.test_every and done % spec.test_every == 0)
        to_save = last or stop or (spec.checkpoint_every and done % spec.checkpoint_every == 0)
        if to_save:
            losses += _read(run, unread, step, (x, y))
        if (to_test or to_save) and not _finite(fabric, run.net):
            raise DivergedError(step, float(loss.detach()), (x, y))
        paused = time.perf_counter()
        # First what was trained: a test may fail, for want of memory, say, and can be made again.
        if to_save:
            run.position = Position(
                step=done, seconds=before + paused - began, pending=tuple(losses), recent=tuple(run.recent),
                metrics_bytes=0 if run.metrics is None else run.metrics.synced(), untested=to_test,
            )  # fmt: skip
            run.save(run.position)
        if to_test:
            _tested(run, done)
        began += time.perf_counter() - paused
        if stop and not last:
            return False
    return True


def _tested(run: Training, done: int) -> None:
    """Test behind a step, and write the line.

    Raises:
        ModelRunError: the model failed.
    """
    try:
        tested = run.test()
    except SkipwayError:
        raise
    except Exception as error:
        raise ModelRunError(
            f"the model failed in the test behind step {done}, in eval mode: {type(error).__name__}: {error}",
            "a model that runs on the samples of the test set",
            "--resume, which tests what the last checkpoint holds again",
        ) from error
    _write(run, {"step": done, "test_loss": tested.loss, "test_error": tested.error})


def _updated(run: Training, loss: Tensor) -> Tensor | None:
    """Backward, clip, step; the gradient's norm before it was clipped, None where it is not."""
    fabric, clip_norm = run.fabric, run.spec.recipe.clip_norm
    run.optimizer.zero_grad(set_to_none=True)
    fabric.backward(loss)
    grad_norm: Tensor | None = None
    if clip_norm is not None:
        grad_norm = fabric.clip_gradients(run.model, run.optimizer, max_norm=clip_norm, error_if_nonfinite=False)
    run.optimizer.step()
    if isinstance(run.net, Net):
        run.net.design.after_step_(run.net.stack.built_units())
    return grad_norm


@contextmanager
def _of_the_model(where: str, x: Tensor) -> Iterator[None]:
    """What is raised inside is the model's own error: it ran before the training, on other samples and in eval mode.

    Raises:
        ModelRunError: something was raised.
    """
    try:
        yield
    except SkipwayError:
        raise
    except Exception as error:
        raise ModelRunError(
            f"the model failed in {where}, trained on {tuple(x.shape)}: {type(error).__name__}: {error}",
            "a model that trains on such batches",
        ) from error


def _read(run: Training, unread: list[Tensor], step: int, batch: tuple[Tensor, Tensor]) -> list[float]:
    """The losses up to a step as numbers, each the mean over all ranks; empties the list.

    Raises:
        DivergedError: one of them is not finite.
    """
    if not unread:
        return []
    stacked = torch.stack(unread)
    unread.clear()
    if run.fabric.world_size > 1:
        reduced = run.fabric.all_reduce(stacked, reduce_op="mean")
        assert isinstance(reduced, torch.Tensor)
        stacked = reduced
    values: list[float] = stacked.tolist()
    for of, value in enumerate(values, step + 1 - len(values)):
        if not math.isfinite(value):
            raise DivergedError(of, value, batch)
        run.recent.append(value)
    return values


def _finite(fabric: Fabric, net: nn.Module) -> bool:
    """Whether all weights are finite, on every rank: a finite loss may still have had a gradient that was not."""
    trained = [p.detach() for p in net.parameters() if p.requires_grad]
    own = [p.to_local() if isinstance(p, DTensor) else p for p in trained]
    finite = torch.stack([p.isfinite().all() for p in own]).all()
    if fabric.world_size > 1:
        reduced = fabric.all_reduce((~finite).float(), reduce_op="sum")
        assert isinstance(reduced, torch.Tensor)
        finite = reduced == 0
    return bool(finite)


def _agreed(fabric: Fabric, wanted: bool, done: int, every: int) -> bool:
    """Whether to stop: ranks agree, and talk about it only when metrics are written."""
    if fabric.world_size == 1:
        return wanted
    if done % every:
        return False
    votes = fabric.all_reduce(torch.tensor(float(wanted), device=fabric.device), reduce_op="sum")
    assert isinstance(votes, torch.Tensor)
    return bool(votes > 0)


def _write(run: Training, line: dict[str, Any]) -> None:
    if run.metrics is not None:
        run.metrics.write(line)
