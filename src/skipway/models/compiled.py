"""Units compiled once for each kind: one graph for all units that differ in their weights only.

The time to compile depends on the number of kinds, which is that of the stages, not of the units. What stands around
the units, stem, exit and head, runs as it is: a few operations that no depth multiplies.

Shapes: L units.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from skipway.designs import State
from skipway.errors import SkipwayError, UnknownNameError
from skipway.models.unit import PlannedUnit
from skipway.spec import COMPILE_MODES, MEMORY_MODES

if TYPE_CHECKING:
    from skipway.models.stack import PlannedStack

__all__ = ["CompiledUnits", "compile_model", "compile_units", "uncompiled", "unit_kinds"]

_count: Final = itertools.count()
# What holds of memory modes: units in a graph are still run again from outside of it; within one, the compiler decides.
_MEMORY: Final[dict[str, tuple[str, ...]]] = {
    "none": MEMORY_MODES,
    "units": tuple(mode for mode in MEMORY_MODES if mode != "recompute"),
    "model": ("keep",),
}


def unit_kinds(units: Sequence[PlannedUnit]) -> list[list[PlannedUnit]]:
    """Units that differ in nothing but the values of their weights stand together.

    Args:
        units: in order of execution.
    """
    kinds: dict[str, list[PlannedUnit]] = {}
    for unit in units:
        tensors = (*unit.named_parameters(), *unit.named_buffers())
        facts = [f"{name} {tuple(t.shape)} {t.dtype} {t.device} {t.requires_grad}" for name, t in tensors]
        kinds.setdefault("\n".join([repr(unit), *facts]), []).append(unit)
    return list(kinds.values())


def compile_units(
    units: Sequence[PlannedUnit],
    *,
    backend: Any = "inductor",
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = True,
) -> int:
    """As `PlannedStack.compile_units`, of these units."""
    _check_repeats(units)
    kinds = unit_kinds(units)
    for kind in kinds:
        run = torch.compile(_own_function(), backend=backend, mode=mode, dynamic=dynamic, fullgraph=fullgraph)
        for unit in kind:
            unit.compiled = run
    return len(kinds)


def _through(unit: PlannedUnit, state: State, t: Tensor | None) -> State:
    return unit.through(state, t)


def _own_function() -> Any:
    """`_through` with code of its own.

    PyTorch keeps graphs, their limit (8), and what it has seen of sizes, with the code. Kinds that shared it would be
    compiled for any width and any image, and three stages in two modes would be over the limit. What it has seen of
    sizes lasts for the process and goes by the code's name, hence a new one each time.
    """
    code: CodeType = _through.__code__.replace(co_name=f"unit_of_kind_{next(_count)}")
    return FunctionType(code, _through.__globals__, code.co_name)


def _check_repeats(units: Sequence[PlannedUnit]) -> None:
    """Raise if each unit would be a graph of its own.

    Raises:
        SkipwayError: none keeps the state's shape.
    """
    if len(units) > 1 and not any(unit.plan.constant_state for unit in units):
        raise SkipwayError(
            f"units of design {units[0].design.id!r} to compile once for each kind: each of the {len(units)} changes "
            "the shape of the state, so that none would share a graph",
            "a design whose state keeps its shape from unit to unit",
            "net.compile(), or --compile model, whose time grows with depth",
        )


def uncompiled(units: Sequence[PlannedUnit]) -> AbstractContextManager[object]:
    """Within it, units run operation by operation."""
    if all(unit.compiled is None for unit in units):
        return nullcontext()  # the compiler takes a second to import
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


class CompiledUnits:
    """What nets share: their units compiled, once for each kind."""

    stack: PlannedStack

    def compile_units(
        self, *, backend: Any = "inductor", mode: str | None = None, dynamic: bool | None = None, fullgraph: bool = True
    ) -> int:
        """`PlannedStack.compile_units` of the net's stack."""
        return self.stack.compile_units(backend=backend, mode=mode, dynamic=dynamic, fullgraph=fullgraph)


def compile_model(model: nn.Module, how: str) -> None:
    """Compile a model in place, by PyTorch's defaults.

    Args:
        model: any; only our own have units to compile one by one.
        how: ``"none"``, ``"units"`` or ``"model"``.

    Raises:
        UnknownNameError: another word.
        SkipwayError: ``"units"`` of a model that is not ours, or of a design whose state grows from unit to unit;
            a memory mode that graphs do away with.
    """
    if how not in COMPILE_MODES:
        raise UnknownNameError("compile", how, COMPILE_MODES)
    if isinstance(model, CompiledUnits) and (memory := model.stack.memory) not in _MEMORY[how]:
        raise SkipwayError(
            f"memory={memory!r} with compile={how!r}, whose graphs keep what the compiler wants",
            "memory one of: " + ", ".join(_MEMORY[how]),
            "--memory checkpoint with --compile units, or --compile none",
        )
    if how == "model":
        model.compile()
    elif how == "units":
        if not isinstance(model, CompiledUnits):
            raise SkipwayError(
                f"compile='units' of a {type(model).__name__}, whose repeated units are not known",
                "one of our own models",
                "--compile model",
            )
        model.compile_units()
