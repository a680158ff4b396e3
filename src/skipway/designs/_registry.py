"""The registry of designs, and designs written as text: ``exclusive_gate(bias=-6)``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from skipway.designs._options import option, option_error, option_hints, type_text
from skipway.designs._seam import Design
from skipway.errors import SkipwayError, UnknownNameError
from skipway.registry import Registry

__all__ = ["DESIGNS", "DesignInfo", "Option", "design_from", "option", "register"]

DESIGNS: Final[Registry[type[Design]]] = Registry("design", "skipway.designs")
D = TypeVar("D", bound=type[Design])


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a design: name, type in words, default, meaning."""

    name: str
    type: str
    default: bool | int | float | str
    help: str


@dataclass(frozen=True, kw_only=True)
class DesignInfo:
    """What lists and documentation show of a design."""

    id: str
    summary: str
    equation: str
    citation: str
    options: tuple[Option, ...]
    parameters: str
    identity_at_init: bool
    warm_up: bool
    note: str

    @classmethod
    def of(cls, design: type[Design]) -> DesignInfo:
        """Collected from the class, its options at their defaults."""
        claims = design().claims()
        hints = option_hints(design)
        options = tuple(
            Option(name=f.name, type=type_text(hints[f.name]), default=f.default, help=f.metadata.get("help", ""))
            for f in fields(design)
            if f.default is not MISSING
        )
        return cls(
            id=design.id,
            summary=(design.__doc__ or "").strip().splitlines()[0],
            equation=design.equation,
            citation=design.citation,
            options=options,
            parameters=claims.parameters,
            identity_at_init=claims.identity_at_init,
            warm_up=claims.warm_up,
            note=claims.note,
        )


def register(*, equation: str, citation: str) -> Callable[[D], D]:
    """Register a design under its file's name.

    Args:
        equation: one unit as a formula, for lists.
        citation: the paper, with its arXiv id.
    """

    def wrap(design: D) -> D:
        design.id = design.__module__.rpartition(".")[2]
        design.equation, design.citation = equation, citation
        DESIGNS.add(design.id, design)
        return design

    return wrap


def design_from(text: str | Design) -> Design:
    """The design that a text such as ``"highway(bias=-2)"`` names.

    Raises:
        UnknownNameError: unknown design or option.
        SkipwayError: a value of the wrong type, or text that is not ``DESIGN(key=value,…)``.
    """
    if isinstance(text, Design):
        return text
    match = re.fullmatch(r"(?P<name>[^()=,]+)(?:\((?P<options>[^()]*)\))?", text.strip())
    if match is None:
        raise SkipwayError(f"not a design: {text!r}", "DESIGN or DESIGN(key=value,…)", "scaled(lam=0.5,mu=0.5)")
    design = DESIGNS[match["name"].strip()]
    given = match["options"]
    if given is None or not given.strip():
        return design()
    hints = option_hints(design)
    known = {f.name: f for f in fields(design)}
    values: dict[str, Any] = {}
    for item in given.split(","):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if not equals or not key or not value:
            raise SkipwayError(f"not an option: {item.strip()!r} in {text!r}", "key=value", "scaled(lam=0.5,mu=0.5)")
        if key not in known:
            raise UnknownNameError(f"option of design {design.id!r}", key, known)
        if key in values:
            raise SkipwayError(f"option {key!r} given twice in {text!r}", "each option once")
        values[key] = _read(design.id, known[key], hints[key], value)
    return design(**values)


def _read(design: str, known: Field[Any], hint: Any, text: str) -> bool | int | float | str:
    wrong = option_error(design, known.name, text, hint, known.default)
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise wrong
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise wrong
        return text.lower() == "true"
    try:
        return int(text) if hint is int else float(text)
    except ValueError:
        raise wrong from None
