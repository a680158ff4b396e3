"""What makes inputs of images, kept in the run folder, so that a trained net can be used where its data is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from skipway.data.preparation import Preparation
from skipway.errors import SkipwayError
from skipway.train.checkpoint import write_tensors

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load_preparation", "save_preparation"]

_FORMAT: Final = "skipway.inputs/1.0"


def save_preparation(path: Path, preparation: Preparation) -> None:
    """Write it as a safetensors file: ``shift`` and ``scale``, and the rest as JSON in the file's metadata.

    Raises:
        SkipwayError: it cannot be written.
    """
    p = preparation
    facts = {"format": _FORMAT, "mode": p.mode, "height": p.height, "width": p.width, "margin": p.margin}
    write_tensors(path, {"shift": p.shift, "scale": p.scale}, {"inputs": json.dumps(facts)})


def load_preparation(path: Path) -> Preparation:
    """Read what `save_preparation` wrote.

    Raises:
        SkipwayError: it is another file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["inputs"])
            tensors = {name: file.get_tensor(name) for name in ("shift", "scale")}
        if facts.pop("format") == _FORMAT:
            return Preparation(**facts, **tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise SkipwayError(f"{path}: {error}", f"a file of the form {_FORMAT}, as the run wrote it") from error
    raise SkipwayError(f"{path} is of another form", _FORMAT, "the version of skipway that trained it")
