"""Names without a prefix: skipway's own models."""

# Shapes: N batch, C channels, H height, W width, T tokens.
from __future__ import annotations

from skipway.models._load_types import LoadedModel

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
    return LoadedModel(
        model=model, label=name, source="own", mode="train", batch=_batch(dict(model.default_cfg), batch_size)
    )
