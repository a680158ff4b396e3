"""Frozen records of what is to be built and how it is optimised; no tensors here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from skipway.errors import SkipwayError, UnknownNameError

__all__ = ["ModelSpec", "OptimizerSpec"]

OptionValue = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model by name, as ``BACKBONE[@DESIGN[(key=value,…)]]`` says it.

    Args:
        backbone: e.g. ``"resnet110"``.
        design: design id, or empty for the backbone's published default.
        options: the design's options in the order given.
    """

    backbone: str
    design: str = ""
    options: tuple[tuple[str, OptionValue], ...] = ()

    def __post_init__(self) -> None:
        if self.options and not self.design:
            raise SkipwayError(f"options without a design for {self.backbone!r}", "BACKBONE@DESIGN(key=value)")

    @property
    def name(self) -> str:
        """The spec as a name that `skipway.create_model` reads back."""
        if not self.design:
            return self.backbone
        options = ",".join(f"{key}={value}" for key, value in self.options)
        return f"{self.backbone}@{self.design}" + (f"({options})" if options else "")

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return {"backbone": self.backbone, "design": self.design, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSpec:
        """Read what `to_dict` wrote; unknown keys are an error."""
        known = ("backbone", "design", "options")
        for key in data:
            if key not in known:
                raise UnknownNameError("key of a model spec", key, known)
        return cls(
            backbone=data["backbone"], design=data.get("design", ""), options=tuple(data.get("options", {}).items())
        )


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """An optimiser and its base values, which a design may multiply per group of parameters.

    Args:
        name: ``"sgd"``, ``"adamw"`` …
        lr: learning rate, dimensionless.
        weight_decay: decoupled for AdamW, L2 for SGD.
        momentum: of SGD.
        betas: of Adam.
        eps: of Adam.
    """

    name: str = "sgd"
    lr: float = 0.1
    weight_decay: float = 1e-4
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.lr < 0 or self.weight_decay < 0 or self.eps < 0:
            raise SkipwayError(
                f"lr={self.lr}, weight_decay={self.weight_decay}, eps={self.eps}", "none of them negative"
            )

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return asdict(self)
