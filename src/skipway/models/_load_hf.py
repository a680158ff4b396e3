"""``hf:PATH-OR-ID``: transformers models from a folder, a config file, the local cache, or a model type's defaults."""

# Shapes: N batch, T tokens, C channels, H height, W width.
from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.errors import MissingPackageError, ModelRunError, SkipwayError, suggest
from skipway.models._load_types import Batch, LoadedModel

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor, nn

__all__ = ["hf_names", "load_hf"]

_TOKENS: Final = 16
_WAVE_SAMPLES: Final = 16_000
_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def hf_names() -> list[str]:
    """Model types whose default configuration transformers knows, e.g. ``bert``.

    Raises:
        MissingPackageError: transformers is not installed.
    """
    return sorted(str(name) for name in _transformers().CONFIG_MAPPING)


def load_hf(name: str, batch_size: int) -> LoadedModel:
    """Build a transformers model; nothing is downloaded.

    A folder that holds weights is loaded with them. A folder with a configuration only, a configuration file, an id
    that is in the local cache, and a model type give random weights.

    Raises:
        MissingPackageError: transformers is not installed.
        SkipwayError: the name is none of these.
        ModelRunError: transformers cannot read or build it.
    """
    transformers = _transformers()
    folder = Path(name).expanduser()
    trained = folder.is_dir() and any((folder / file).exists() for file in _WEIGHTS)
    config = _config(transformers, name, folder)
    maker = _maker(transformers, config)
    try:
        model = maker.from_pretrained(str(folder), local_files_only=True) if trained else _random(maker, config)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise ModelRunError(f"transformers cannot build {name!r}: {error}") from error
    return LoadedModel(
        model=model, label=f"hf:{name}", source="hf", mode="eval" if trained else "train",
        batch=_batch(model, config, batch_size), fresh=not trained,
    )  # fmt: skip


def _config(transformers: ModuleType, name: str, folder: Path) -> Any:
    if not folder.exists() and name in transformers.CONFIG_MAPPING:
        return transformers.CONFIG_MAPPING[name]()
    if folder.is_dir() and not (folder / "config.json").exists():
        raise SkipwayError(f"the folder {name!r} holds no config.json", "a folder written by save_pretrained")
    try:
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        if folder.exists():
            raise ModelRunError(f"transformers cannot read the configuration in {name!r}: {error}") from error
        close = suggest(name, hf_names())
        expected = "a local folder, a config.json, an id in the local cache, or a model type such as hf:bert"
        if close:
            expected += "; did you mean " + " or ".join(f"'hf:{c}'" for c in close) + "?"
        raise SkipwayError(
            f"hf:{name} is not on this machine, and nothing is downloaded unless asked", expected,
            "" if close else f"hf download {name}",
        ) from None  # fmt: skip


def _maker(transformers: ModuleType, config: Any) -> Any:
    """The class that the configuration names, else the bare model."""
    for architecture in getattr(config, "architectures", None) or ():
        if hasattr(transformers, architecture):
            return getattr(transformers, architecture)
    return transformers.AutoModel


def _random(maker: Any, config: Any) -> nn.Module:
    built: nn.Module = maker.from_config(config) if hasattr(maker, "from_config") else maker(config)
    return built


def _batch(model: Any, config: Any, n: int) -> Batch | None:
    """Keyword arguments that the model's own configuration asks for; None where it does not say."""
    makers = {"input_ids": _ids, "pixel_values": _pixels, "input_values": _wave, "input_features": _mel}
    needed = [model.main_input_name]
    if needed == ["input_ids"] and hasattr(model, "vision_model") and hasattr(model, "text_model"):
        needed.append("pixel_values")  # two encoders side by side, as CLIP has them
    batch: dict[str, Any] = {}
    for key in needed:
        made = makers[key](config, n) if key in makers else None
        if made is None:
            return None
        batch[key] = made
    parameters = inspect.signature(model.forward).parameters
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        batch["decoder_input_ids"] = _ids(config, n)
    if "use_cache" in parameters:
        batch["use_cache"] = False  # a cache belongs to generation; here it would only be recorded as noise
    return batch


def _ids(config: Any, n: int) -> Tensor | None:
    text = getattr(config, "text_config", config)
    size = getattr(text, "vocab_size", None)
    if size is None:
        return None
    return torch.randint(2, int(size), (n, _TOKENS), generator=torch.Generator().manual_seed(0))


def _pixels(config: Any, n: int) -> Tensor | None:
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", None) or 224
    h, w = (side, side) if isinstance(side, int) else (int(side[0]), int(side[-1]))
    c = getattr(vision, "num_channels", None) or 3
    return torch.randn(n, int(c), h, w, generator=torch.Generator().manual_seed(0))


def _wave(_config: Any, n: int) -> Tensor:
    return torch.randn(n, _WAVE_SAMPLES, generator=torch.Generator().manual_seed(0))


def _mel(config: Any, n: int) -> Tensor | None:
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if bins is None or positions is None:
        return None
    # The encoder's strided convolution halves the frames.
    return torch.randn(n, int(bins), 2 * int(positions), generator=torch.Generator().manual_seed(0))


def _transformers() -> ModuleType:
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingPackageError("transformers", "a model named hf:…", "hf") from None
    module: ModuleType = transformers
    return module
