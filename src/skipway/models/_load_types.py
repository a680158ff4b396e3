"""What loading a model by name gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

__all__ = ["Batch", "LoadedModel", "Mode"]

Batch = Tensor | tuple[Any, ...] | dict[str, Any]
Mode = Literal["train", "eval"]


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that was loaded by name.

    Args:
        model: the module, in the mode in which its maker left it.
        label: the name as it was asked for.
        source: ``"own"``, ``"tv"``, ``"timm"``, ``"hf"``, ``"module"`` or ``"file"``.
        mode: mode to measure it in. A freshly initialised network has no running statistics to speak of, so a named
            model is measured with batch statistics (``"train"``); trained weights ask for ``"eval"``.
        batch: something the model can be called with; None where nothing is known.
        fresh: whether the weights are the ones of initialisation.
    """

    model: nn.Module
    label: str
    source: str
    mode: Mode
    batch: Batch | None
    fresh: bool = True
