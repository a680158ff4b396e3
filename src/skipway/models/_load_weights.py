"""Weights from a file, all of them or none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

__all__ = ["is_counter", "load_weights", "misfits", "read_tensors"]

MOST_NAMES: Final = 6


def load_weights(model: nn.Module, path: str | Path) -> int:
    """Load every parameter and buffer of `model` from a safetensors file or a ``weights_only`` checkpoint.

    Counters of batches may lack, as PyTorch has it for files older than they are.

    Args:
        model: changed in place, but only when everything fits.
        path: the file.

    Returns:
        How many tensors were loaded.

    Raises:
        SkipwayError: the file cannot be read safely, or its names or shapes do not fit the model's; then nothing was
            loaded, and the text lists what is missing, unexpected and of another shape.
    """
    state = read_tensors(path)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        keys = f" with the keys {', '.join(map(str, list(state)[:MOST_NAMES]))}" if isinstance(state, dict) else ""
        raise SkipwayError(
            f"{path} holds no flat dictionary of tensors but {type(state).__name__}{keys}",
            "a state dict: name → tensor", "torch.save(model.state_dict(), FILE)",
        )  # fmt: skip
    own = model.state_dict()
    lines = misfits(own, state, "the file")
    if lines:
        first = f"{path} fits the model only partly, so nothing was loaded"
        raise SkipwayError("\n".join([first, *lines]), "every tensor of the model and no other", _hint(own, state))
    model.load_state_dict(state, strict=False)
    return len(state)


def misfits(own: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str) -> list[str]:
    """What does not fit between a model's tensors and those of a file, a line for each kind; empty where all fits.

    Args:
        own: the model's state dict.
        state: the file's.
        source: the file, in words.
    """
    held = {_place(own[key]) for key in own if key in state}
    # A tied tensor is written once; under its other names the file may leave it out.
    missing = [key for key in own if key not in state and _place(own[key]) not in held and not is_counter(key)]
    unexpected = [key for key in state if key not in own]
    other = _other_shapes(own, state)
    if not (missing or unexpected or other):
        return []
    fit = sum(key in state for key in own) - len(other)
    return [
        f"  fit: {fit} of the model's {len(own)} tensors",
        *_listed(f"missing in {source}", missing),
        *_listed(f"unexpected in {source}", unexpected),
        *_listed(
            "of another shape", [f"{k} {list(state[k].shape)} in {source}, {list(own[k].shape)} here" for k in other]
        ),
    ]


def _other_shapes(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    return [key for key in own if key in state and own[key].shape != state[key].shape]


def read_tensors(path: str | Path) -> Any:
    """The content of a ``.safetensors`` file, or of a torch file that holds nothing but tensors and plain containers.

    Raises:
        SkipwayError: the file is missing, broken, or would need unpickling of code.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise SkipwayError(f"there is no file {str(path)!r}", "a .safetensors or .pt file")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise SkipwayError(f"{path} is no readable safetensors file: {error}") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises UnpicklingError, RuntimeError, EOFError … by the way in which the file is broken.
        first = str(error).strip().split("\n")[0]
        raise SkipwayError(
            f"{path} cannot be read as tensors only: {first}", "a .safetensors file, or one written by torch.save of "
            "tensors in plain dicts, lists and tuples", "safetensors.torch.save_file({name: tensor, …}, FILE)",
        ) from error  # fmt: skip


def is_counter(name: str) -> bool:
    """Whether a batch norm counts its batches there."""
    return name.rpartition(".")[2] == "num_batches_tracked"


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = ", …" if len(names) > MOST_NAMES else ""
    return [f"  {what} ({len(names)}): {', '.join(names[:MOST_NAMES])}{more}"]


def _hint(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    if 0 < len(_other_shapes(own, state)) <= 2:
        return "build the model with the file's number of classes, or save the file from this very model"
    for prefix in ("module.", "model.", "_orig_mod."):
        if state and all(key.startswith(prefix) for key in state) and not any(key.startswith(prefix) for key in own):
            return f"every name in the file begins with {prefix!r}: save the inner module's state_dict()"
        if own and all(key.startswith(prefix) for key in own) and not any(key.startswith(prefix) for key in state):
            return f"every name of the model begins with {prefix!r}: name a factory that gives the inner module"
    return "save the file from this very model: torch.save(model.state_dict(), FILE)"
