"""``timm:NAME``: timm's models, without pretrained weights."""

# Shapes: N batch, C channels, H height, W width.
from __future__ import annotations

from typing import Any

import torch

from skipway.errors import MissingPackageError, ModelRunError, UnknownNameError
from skipway.models._load_types import LoadedModel

__all__ = ["load_timm", "timm_names"]


def timm_names() -> list[str]:
    """Names that timm registers.

    Raises:
        MissingPackageError: timm is not installed.
    """
    return [str(name) for name in _timm().list_models()]


def load_timm(
    name: str, batch_size: int, num_classes: int | None = None, in_channels: int | None = None
) -> LoadedModel:
    """Build a timm model with random weights.

    Raises:
        MissingPackageError: timm is not installed.
        UnknownNameError: timm has no such model.
        ModelRunError: timm refuses to build it.
    """
    timm = _timm()
    # The part behind the dot names a set of weights; the architecture is the same. timm's own prefixes ("hf-hub:")
    # would go to the network, so only names of its registry pass.
    if not timm.is_model(name.partition(".")[0]):
        raise UnknownNameError("timm model", name, timm_names())
    given = {
        key: value for key, value in (("num_classes", num_classes), ("in_chans", in_channels)) if value is not None
    }
    try:
        model = timm.create_model(name, pretrained=False, **given)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ModelRunError(f"timm cannot build {name!r}: {error}") from error
    c, h, w = model.default_cfg["input_size"]
    c = in_channels or c
    batch = torch.randn(batch_size, c, h, w, generator=torch.Generator().manual_seed(0))
    return LoadedModel(model=model, label=f"timm:{name}", source="timm", mode="train", batch=batch)


def _timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise MissingPackageError("timm", "a model named timm:…", "timm") from None
    return timm
