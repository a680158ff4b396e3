"""``tv:NAME``: torchvision's models, without pretrained weights."""

# Shapes: N batch, C channels, T frames, H height, W width.
from __future__ import annotations

import inspect
import warnings
from typing import Any, Final

import torch

from skipway.errors import ModelRunError, UnknownNameError
from skipway.models._load_types import Batch, LoadedModel, Mode

__all__ = ["load_tv", "tv_names"]

_CLIP_FRAMES: Final = 16
_SIDE: Final = 224
_DETECTION_SIDE: Final = 320


def tv_names() -> list[str]:
    """Names that torchvision registers."""
    from torchvision.models import list_models

    return [str(name) for name in list_models()]


def load_tv(name: str, batch_size: int, num_classes: int | None = None) -> LoadedModel:
    """Build a torchvision model with random weights.

    Raises:
        UnknownNameError: torchvision has no such model.
        ModelRunError: torchvision refuses to build it.
    """
    from torchvision.models import get_model_builder

    if name not in tv_names():
        raise UnknownNameError("torchvision model", name, tv_names())
    builder = get_model_builder(name)
    family = builder.__module__.removeprefix("torchvision.models.").split(".")[0]
    given: dict[str, Any] = {"weights": None}
    # Without this, a detection or segmentation network downloads its backbone.
    if "weights_backbone" in inspect.signature(builder).parameters:
        given["weights_backbone"] = None
    if num_classes is not None:
        given["num_classes"] = num_classes
    try:
        with warnings.catch_warnings():
            # inception_v3 and googlenet announce a change of their initialisation that is theirs to make.
            warnings.filterwarnings("ignore", message="The default weight initialization", category=FutureWarning)
            model = builder(**given)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise ModelRunError(f"torchvision cannot build {name!r}: {error}") from error
    # In train mode torchvision's detectors ask for targets.
    mode: Mode = "eval" if family in ("detection", "quantization") else "train"
    return LoadedModel(model=model, label=f"tv:{name}", source="tv", mode=mode, batch=_batch(name, family, batch_size))


def _batch(name: str, family: str, n: int) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    if family == "optical_flow":
        return noise(n, 3, 128, 128), noise(n, 3, 128, 128)
    if family == "video":
        side = _crop(name) or (112, 112)
        return noise(n, 3, _CLIP_FRAMES, *side)
    if family == "detection":
        # Detectors read values between 0 and 1.
        return torch.rand(n, 3, _DETECTION_SIDE, _DETECTION_SIDE, generator=generator)
    return noise(n, 3, *(_crop(name) or (_SIDE, _SIDE)))


def _crop(name: str) -> tuple[int, int] | None:
    """Height and width that the published weights were trained for; the entry is read, the weights are not fetched."""
    from torchvision.models import get_model_weights

    for entry in get_model_weights(name):
        if crop := getattr(entry.transforms(), "crop_size", None):
            sides = [int(side) for side in crop]
            return sides[0], sides[-1]
    return None
