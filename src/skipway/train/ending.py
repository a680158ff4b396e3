"""How a run ends: its result, and where the first number stopped being finite if it diverged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from skipway.diagnostics.inspect import inspect
from skipway.diagnostics.nonfinite import first_non_finite, non_finite_leaf
from skipway.errors import SkipwayError
from skipway.report.files import write_json
from skipway.train.folder import read_json
from skipway.train.strategy import is_sharded

if TYPE_CHECKING:
    from torch import nn

    from skipway.train.folder import RunFolder
    from skipway.train.loop import DivergedError, Training

__all__ = ["diverged", "finished"]


def finished(training: Training, folder: RunFolder) -> dict[str, Any]:
    """Write and return the result of a run that came to its end."""
    return _ended(training, folder, {"status": "finished", "steps": training.position.step})


def diverged(training: Training, folder: RunFolder, error: DivergedError) -> dict[str, Any]:
    """Write and return the result of a run whose loss is not finite, with the place where that began."""
    fabric = training.fabric
    # Looking for the place takes a run on one rank alone, which holds only a part of a sharded net.
    leaf = None if is_sharded(fabric) else non_finite_leaf(training.net)
    if is_sharded(fabric):
        where, what = "", "the loss or a weight; a sharded net is not searched for the place"
    elif leaf:
        where, what = leaf.rpartition(".")[0], f"parameter {leaf} is not finite"
    else:
        x = fabric.strategy.precision.convert_input(error.batch[0])
        with fabric.autocast():
            seen = first_non_finite(training.net, x, keep_parameters=False)
        if seen:
            where, what = seen["path"], f"{seen['operation']} is the first not finite"
        else:
            where, what = _largest_stream(training.net, x)
    facts = {"status": "diverged", "steps": error.step, "loss": error.loss, "where": where, "what": what}
    return _ended(training, folder, facts | {"checkpoint_step": training.position.step or None})


def _largest_stream(net: nn.Module, x: Any) -> tuple[str, str]:
    """Where every number is finite and the loss is not, outputs are too large for it: where the stream is largest."""
    try:
        units = inspect(net, x, profile="fast").units
    except SkipwayError:
        units = []
    sizes = [(u.numbers.out_rms, u.path) for u in units if u.level == 0 and u.numbers.out_rms is not None]
    if not sizes:
        return "", "every number before the loss is finite, the loss is not"
    rms, path = max(sizes)
    return path, f"every number before the loss is finite, but the stream grows to rms {rms:.3g}"


def _ended(training: Training, folder: RunFolder, facts: dict[str, Any]) -> dict[str, Any]:
    spec, lines = training.spec, folder.read_metrics()
    losses = [line for line in lines if "loss" in line]
    tested: dict[str, Any] = next((line for line in reversed(lines) if "test_error" in line), {})
    seconds, done = (losses[-1]["seconds"], losses[-1]["step"]) if losses else (0.0, 0)
    result = {
        **facts,
        "model": spec.model,
        "seed": spec.seed,
        "train_loss": math.fsum(training.recent) / len(training.recent) if training.recent else None,
        "test_loss": tested.get("test_loss"),
        "test_error": tested.get("test_error"),
        "seconds": seconds,
        "samples_per_sec": done * spec.recipe.batch_size / seconds if seconds else None,
        "parameters": sum(p.numel() for p in training.net.parameters()),
    }
    write_json(folder.result_path, result)
    return read_json(folder.result_path)  # where a loss that is not finite is a word
