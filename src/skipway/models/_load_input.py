"""What a model is called with: from words on the command line, or from a file.

One input is ``[NAME=][KIND:]D,D,…``; several are joined by ``;``. Without a name inputs are positional. Kinds:
``float`` (standard normal noise, the default), ``unit`` (uniform between 0 and 1), ``ids`` (integers below the size of
the model's first embedding), ``ids1000`` (integers below 1000), ``ones``, ``zeros`` (float), ``mask`` (all true).
"""

from __future__ import annotations

import inspect
import math
import re
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from skipway.errors import SkipwayError, UnknownNameError
from skipway.models._load_weights import read_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from skipway.models._load_types import Batch

__all__ = ["parse_input", "read_batch", "suggested_input", "to_floating", "with_keywords"]

EXAMPLES: Final = "2,3,224,224 or ids:2,16 or 'input_ids=ids:2,16;attention_mask=mask:2,16'"
# 4 GiB of floats: beyond this a size is a slip of the keyboard.
_MOST_VALUES: Final = 2**30
_SIDES: Final = {1: "256", 2: "224,224", 3: "16,64,64"}
_KINDS: Final = ("float", "unit", "ids", "ones", "zeros", "mask")
_ITEM: Final = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?:(?P<kind>[a-z]+)(?P<below>\d+)?:)?(?P<shape>\d+(?:,\d+)*),?"
)  # fmt: skip


def parse_input(text: str, model: nn.Module) -> Batch:
    """Make the batch that `text` describes.

    Args:
        text: see this module's first lines.
        model: asked for the size of its embedding, where integers below it are wanted.

    Raises:
        SkipwayError: the text is no description of inputs.
    """
    generator = torch.Generator().manual_seed(0)
    positional: list[Tensor] = []
    named: dict[str, Any] = {}
    for item in text.split(";"):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise SkipwayError(f"no input: {item.strip()!r}", "[NAME=][KIND:]D,D,… joined by ';'", EXAMPLES)
        kind = match["kind"] or "float"
        if kind not in _KINDS or (match["below"] and kind != "ids"):
            raise UnknownNameError("kind of input", f"{kind}{match['below'] or ''}", _KINDS, EXAMPLES)
        shape = [int(size) for size in match["shape"].split(",")]
        tensor = _make(kind, shape, int(match["below"]) if match["below"] else None, model, generator)
        if match["name"]:
            named[match["name"]] = tensor
        else:
            positional.append(tensor)
    if not named:
        return positional[0] if len(positional) == 1 else tuple(positional)
    return with_keywords(tuple(positional), named, model) if positional else named


def suggested_input(model: nn.Module) -> str:
    """What ``--input`` might be for a model that does not say it, read off the first layer that it holds."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return "ids:2,16"
        if isinstance(module, nn.Linear):
            return f"2,{module.in_features}"
        if isinstance(module, nn.modules.conv._ConvNd):  # noqa: SLF001  # their base class
            sides = _SIDES.get(len(module.kernel_size), "224,224")
            return f"2,{module.in_channels},{sides}"
    return "2,3,224,224"


def _make(kind: str, shape: list[int], below: int | None, model: nn.Module, generator: torch.Generator) -> Tensor:
    size = math.prod(shape)
    if size > _MOST_VALUES:
        raise SkipwayError(
            f"an input of {size:.3g} values", f"at most {_MOST_VALUES:,}", "smaller sizes, e.g. 2,3,224,224"
        )
    if kind == "ids":
        return torch.randint(0, below or _vocabulary(model), shape, generator=generator)
    if kind == "mask":
        return torch.ones(shape, dtype=torch.bool)
    makers = {"ones": torch.ones, "zeros": torch.zeros}
    if kind in makers:
        return makers[kind](shape)
    if kind == "unit":
        return torch.rand(shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _vocabulary(model: nn.Module) -> int:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            return module.num_embeddings
    raise SkipwayError(
        "the model has no embedding that would bound the integers of an 'ids' input", "the bound behind 'ids'",
        "ids1000:2,16",
    )  # fmt: skip


def read_batch(path: str | Path, model: nn.Module) -> Batch:
    """The batch in a file: one tensor is the first argument, names of the model's arguments are keywords.

    Raises:
        SkipwayError: the file cannot be read safely, or holds neither tensors nor containers of tensors.
    """
    content = read_tensors(path)
    if isinstance(content, Tensor):
        return content
    if isinstance(content, tuple | list) and content:
        return tuple(content)
    if isinstance(content, dict) and content:
        arguments = _arguments(model)
        if len(content) == 1 and not set(content) & set(arguments):
            (only,) = content.values()
            return only  # type: ignore[no-any-return]  # the model's own error names what it cannot take
        return {str(key): value for key, value in content.items()}
    raise SkipwayError(f"{path} holds {type(content).__name__}, no batch", "a tensor, a tuple or a dict of tensors")


def with_keywords(batch: Batch, keywords: Mapping[str, Any], model: nn.Module) -> Batch:
    """`batch` with further keyword arguments; positional inputs get the names that the model's forward gives them.

    Raises:
        SkipwayError: the forward has fewer named arguments than there are positional inputs.
    """
    if not keywords:
        return batch
    if isinstance(batch, dict):
        return {**batch, **keywords}
    inputs = batch if isinstance(batch, tuple) else (batch,)
    names = _arguments(model)
    if len(names) < len(inputs):
        raise SkipwayError(
            f"{len(inputs)} positional inputs beside keywords, but forward names {len(names)} arguments",
            "inputs with names", EXAMPLES,
        )  # fmt: skip
    return {**dict(zip(names, inputs, strict=False)), **keywords}


def _arguments(model: nn.Module) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds]


def to_floating(batch: Any, device: torch.device | None, dtype: torch.dtype | None) -> Any:
    """The batch on another device, its floating tensors in another dtype; integers stay integers."""
    if isinstance(batch, Tensor):
        return batch.to(device=device, dtype=dtype if batch.is_floating_point() else None)
    if isinstance(batch, tuple | list):
        return type(batch)(to_floating(item, device, dtype) for item in batch)
    if isinstance(batch, dict):
        return {key: to_floating(item, device, dtype) for key, item in batch.items()}
    return batch
