"""Lowering to JSON, strictly: what is not finite is written as a string, so that every reader can parse it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipway.parts import Part

__all__ = ["dumps", "parts_to_dicts", "schema"]


def dumps(value: object, *, indent: int | None = 2, ascii_only: bool = False) -> str:
    """Strict JSON of plain values; NaN and infinities become ``"nan"``, ``"inf"`` and ``"-inf"``.

    Args:
        value: numbers, texts, lists, mappings.
        indent: spaces for each level; None for a single line.
        ascii_only: escape what is not ASCII, for outputs that could not hold it.
    """
    return json.dumps(_finite(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)


def parts_to_dicts(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    """Parts as plain values, each with the name of its kind under ``part``."""
    return [_plain(part) for part in parts]


def schema(name: str = "inspection-1.0") -> dict[str, Any]:
    """The JSON schema that is shipped under `name`."""
    text = resources.files("skipway.report").joinpath("schema").joinpath(f"{name}.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"part": type(value).__name__, **{f.name: _plain(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
