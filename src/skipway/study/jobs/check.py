"""Everything that can be refused before the first run begins: unknown models, missing data, nets that do not fit."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from skipway.data import open_data
from skipway.errors import ModelRunError, SkipwayError
from skipway.models.load_for import load_for_run
from skipway.train.check import check_trainable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.spec import RunSpec

__all__ = ["check_runs"]


def check_runs(settings: RunSpec, models: Sequence[str]) -> None:
    """Build each model once and run it on two samples; the generators are as they were, afterwards.

    Args:
        settings: of every run; its model and seed are not used.
        models: names.

    Raises:
        SkipwayError: the data are not there, hold fewer samples than a batch, or a model is unknown or does not fit;
            the text names it.
    """
    data = open_data(settings.data)
    next(data.train(batch_size=settings.recipe.batch_size, seed=0))  # its files can be read
    for model in models:
        with _named(model), torch.random.fork_rng():
            spec = replace(settings, model=model)
            net = load_for_run(spec, num_classes=data.info.num_classes, input_shape=data.info.input_shape)
            check_trainable(net, data, settings.recipe.batch_size)


@contextmanager
def _named(model: str) -> Iterator[None]:
    """Errors inside say whose they are."""
    try:
        yield
    except SkipwayError as error:
        kind = ModelRunError if isinstance(error, ModelRunError) else SkipwayError
        raise kind(
            f"nothing was started, because of {model}: {error.given}", error.expected, error.hint
        ) from error.__cause__
