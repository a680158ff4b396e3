"""Any model by name: our own, torchvision's, timm's, transformers', or anybody's factory. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from skipway.models._load_code import import_object, load_code
from skipway.models._load_hf import hf_names, load_hf
from skipway.models._load_input import parse_input, read_batch, suggested_input, to_floating, with_keywords
from skipway.models._load_own import load_own, own_names
from skipway.models._load_timm import load_timm, timm_names
from skipway.models._load_tv import load_tv, tv_names
from skipway.models._load_types import Batch, LoadedModel
from skipway.models._load_weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = [
    "Batch", "LoadedModel", "import_object", "load_model", "load_weights", "model_names", "parse_input",
    "read_batch", "suggested_input", "to_floating", "with_keywords",
]  # fmt: skip

_LOADERS: Final[Mapping[str, Callable[[str, int], LoadedModel]]] = {"tv": load_tv, "timm": load_timm, "hf": load_hf}
_NAMES: Final[Mapping[str, Callable[[], list[str]]]] = {"tv": tv_names, "timm": timm_names, "hf": hf_names}


def load_model(name: str, *, batch_size: int = 2, weights: str | Path | None = None) -> LoadedModel:
    """Load the model called `name`, with something to call it with.

    Args:
        name: ``resnet110@preact`` (ours), ``tv:resnet50``, ``timm:convnext_tiny``, ``hf:bert`` or ``hf:FOLDER``,
            ``pkg.mod:factory``, ``path/to/file.py:factory``.
        batch_size: samples in the default batch. Batch statistics need at least 2.
        weights: a safetensors or ``weights_only`` file to load into it; all of it or none. The model is then
            measured in eval mode.

    Raises:
        UnknownNameError: nothing of that name; the text names what comes near.
        MissingPackageError: the name needs a package that is not installed.
        SkipwayError: the factory is none, or the weights fit only partly.
        ModelRunError: the model's own code fails; its error is chained.
    """
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _LOADERS:
        loaded = _LOADERS[prefix](rest, batch_size)
    elif colon or name.endswith(".py"):
        loaded = load_code(name, tuple(_LOADERS))
    else:
        loaded = load_own(name, batch_size)
    if weights is not None:
        load_weights(loaded.model, weights)
        loaded = replace(loaded, mode="eval", fresh=False)
    return loaded


def model_names(start: str = "") -> list[str]:
    """Names of models that begin with `start`; those of a library only behind its prefix, e.g. ``tv:res``."""
    prefix, colon, _ = start.partition(":")
    if colon and prefix in _NAMES:
        names = [f"{prefix}:{name}" for name in _NAMES[prefix]()]
    else:
        names = [*own_names(), *(f"{library}:" for library in _NAMES)]
    return [name for name in names if name.startswith(start)]
