"""Call a model in a trial as everywhere: with one tensor, with several, or by keyword."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError
from skipway.trace.batch import call_arguments, failed_on

if TYPE_CHECKING:
    from torch import nn

    from skipway.trace.batch import Batch

__all__ = ["called"]


def called(model: nn.Module, batch: Batch) -> Any:
    """What a model gives for a batch.

    Args:
        model: any module.
        batch: a tensor, a tuple of positional arguments or a dict of keyword arguments.

    Raises:
        SkipwayError: the batch is none of these.
        ModelRunError: the model raised; its own error is the cause.
    """
    args, kwargs = call_arguments(batch)
    try:
        return model(*args, **kwargs)
    except SkipwayError:
        raise
    except Exception as error:
        raise failed_on(batch, error) from error
