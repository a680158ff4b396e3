"""What a program with a known fault is, and the list of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["CASES", "FaultCase", "healthy", "pair"]

Batch = Any  # a tensor, a tuple of positional arguments or a dict of keyword arguments


@dataclass(frozen=True, kw_only=True)
class FaultCase:
    """One small program and the verdict that it must get.

    Args:
        rule: id of the rule that the program is about.
        name: unique among the programs of its rule.
        build: makes the model, seeded inside.
        batch: makes what the model is called with, the same at each call.
        severity: the least severity of the finding; None where none is expected.
        where: part of the module path that the finding names; None where the fault is one of the whole net.
        mode: the mode in which the model is inspected.
        loss: maps the output to a scalar; None for inspect's own.
        optimizer: the optimizer that would train the model, where the rule looks at it.
        profile: the profile of the inspection.
        options: ``amp`` (dtype name of an autocast region), ``raises`` (``"forward"`` or ``"backward"``), ``odd``
            (makes a batch of another size, at which the model raises), ``may`` (gravest severity of the rule that a
            healthy program may still get), ``exhaustive`` (too slow for the default tests).
        healthy: whether the program has no fault; then the rule must be silent.
        reason: what the program shows.
        twin: name of the healthy program that differs in nothing but the fault.
    """

    rule: str
    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    severity: str | None
    where: str | None
    mode: Literal["train", "eval"] = "train"
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    profile: str = "default"
    options: dict[str, Any] = field(default_factory=dict)
    healthy: bool = False
    reason: str = ""
    twin: str = ""

    @property
    def id(self) -> str:
        """The name by which tests call the program."""
        return f"{self.rule}-{self.name}"


CASES: list[FaultCase] = []


def pair(
    rule: str,
    name: str,
    net: Callable[[bool], nn.Module],
    batch: Callable[[], Batch],
    *,
    severity: str,
    where: str | None,
    reason: str = "",
    optimizer: Callable[[bool, nn.Module], torch.optim.Optimizer] | None = None,
    options: dict[str, Any] | None = None,
    twin_options: dict[str, Any] | None = None,
    **same: Any,
) -> None:
    """Register a faulty program and its healthy twin: ``net(True)`` has the fault, ``net(False)`` has not."""
    options = options or {}
    kept = {k: v for k, v in options.items() if k in ("amp", "exhaustive")}
    for fault in (True, False):
        CASES.append(  # noqa: PERF401  # reads better than a generator of this size
            FaultCase(
                rule=rule,
                name=name if fault else f"{name}_healthy",
                build=_seeded(net, fault),
                batch=batch,
                severity=severity if fault else None,
                where=where if fault else None,
                optimizer=None if optimizer is None else _bound(optimizer, fault),
                options=options if fault else kept | (twin_options or {}),
                healthy=not fault,
                reason=reason,
                twin=f"{name}_healthy" if fault else "",
                **same,
            )
        )


def healthy(
    rule: str,
    name: str,
    net: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    *,
    reason: str,
    options: dict[str, Any] | None = None,
    **same: Any,
) -> None:
    """Register a near miss: a program on which the rule must stay silent."""
    CASES.append(
        FaultCase(
            rule=rule,
            name=name,
            build=_seeded(lambda _: net(), False),
            batch=batch,
            severity=None,
            where=None,
            options=options or {},
            healthy=True,
            reason=reason,
            **same,
        )
    )


def _seeded(net: Callable[[bool], nn.Module], fault: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return net(fault)

    return build


def _bound(
    optimizer: Callable[[bool, nn.Module], torch.optim.Optimizer], fault: bool
) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: optimizer(fault, model)
