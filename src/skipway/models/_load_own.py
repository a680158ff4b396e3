"""Names without a prefix: skipway's own models."""

# Shapes: N batch, C channels, H height, W width, T tokens.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from skipway.models._load_types import LoadedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = ["load_own", "own_names"]


def own_names() -> list[str]:
    """Names of our own models, without designs."""
    from skipway.models import list_models

    return list_models()


def load_own(name: str, batch_size: int) -> LoadedModel:
    """Build one of our own models with random weights.

    Raises:
        UnknownNameError: unknown backbone, design or option.
    """
    from skipway.models import create_model

    model = create_model(name)
    return LoadedModel(model=model, label=name, source="own", mode="train", batch=_batch(model.default_cfg, batch_size))


def _batch(config: Mapping[str, Any], n: int) -> Tensor:
    """(N,C,H,W) noise, or (N,T) integers below the vocabulary."""
    shape, generator = (n, *config["input_size"]), torch.Generator().manual_seed(0)
    if config["input_dtype"] == "int64":
        return torch.randint(config["vocabulary"], shape, generator=generator)
    return torch.randn(shape, generator=generator)
