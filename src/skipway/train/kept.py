"""What the files of a run folder must hold to be told again; somebody may have edited them, or cut them off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["check_environment", "check_line", "check_result"]

_Kinds = dict[str, tuple[type, ...]]
_NUMBER: Final = (int, float)
_RESULT: Final[_Kinds] = {"status": (str,), "steps": (int,), "seconds": _NUMBER, "parameters": (int,)}
_FINISHED: Final[_Kinds] = {"test_error": _NUMBER, "train_loss": (*_NUMBER, str)}
_DIVERGED: Final[_Kinds] = {"where": (str,), "what": (str,), "loss": (*_NUMBER, str)}
_ENVIRONMENT: Final[_Kinds] = {
    **dict.fromkeys(("skipway", "torch", "torchvision", "numpy", "python", "platform"), (str,)),
    **dict.fromkeys(("processor", "device", "precision"), (str,)), "cores": (int,), "threads": (int,),
    "channels_last": (bool,), "data": (dict,),
}  # fmt: skip
_DATA: Final[_Kinds] = {
    "name": (str,), "note": (str,), "fingerprint": (str,), "input_shape": (list,), "num_classes": (int,),
    "train_size": (int,), "test_size": (int,),
}  # fmt: skip


def check_result(path: Path, values: Mapping[str, Any]) -> None:
    """See that ``result.json`` says how a run ended.

    Raises:
        SkipwayError: something is missing or of another type.
    """
    _check(path, values, _RESULT)
    status = values["status"]
    if status not in ("finished", "diverged"):
        raise SkipwayError(f"{path}: status {status!r}", "finished or diverged")
    _check(path, values, _FINISHED if status == "finished" else _DIVERGED)


def check_environment(path: Path, values: Mapping[str, Any]) -> None:
    """See that ``environment.json`` says what a run ran on.

    Raises:
        SkipwayError: something is missing or of another type.
    """
    _check(path, values, _ENVIRONMENT)
    _check(path, values["data"], _DATA)


def check_line(path: Path, line: object) -> dict[str, Any]:
    """A line of metrics.

    Raises:
        SkipwayError: it is none.
    """
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise SkipwayError(f"{path} holds a line without a step: {line!r}", "the file as it was written")
    return line


def _check(path: Path, values: Mapping[str, Any], kinds: _Kinds) -> None:
    for key, kind in kinds.items():
        if not isinstance(values.get(key), kind):
            given = f"{key} {values[key]!r}" if key in values else f"no {key}"
            raise SkipwayError(f"{path}: {given}", "the file as it was written")
