"""What-if runs: the user's unmodified model, altered where chosen residual units join."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError, UnknownNameError
from skipway.units.alter import Absent, Planner
from skipway.units.alteration import Alteration
from skipway.units.intercept import Plan, intercepted
from skipway.units.locate import locate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from skipway.trace.batch import Batch
    from skipway.units.locate import Located

__all__ = ["plan_alterations", "what_if"]


@contextmanager
def what_if(model: nn.Module, changes: Mapping[str, Alteration], batch: Batch | None = None) -> Iterator[None]:
    """Within it every call ``model(...)`` runs with some residual units altered; afterwards the model is as it was.

    A unit ``x' = f( h(x) + s·F(x) )`` becomes what its `skipway.Alteration` says. The model runs eagerly; gradients are
    those of the altered model, also under autocast, gradient accumulation and activation checkpointing, in train and in
    eval mode, with other batch sizes, inside DDP. Contexts can be nested: the outer alteration is made first.

    Call the model (or its DDP or compiled wrapper), not its ``forward`` method or one of its parts: only a call of the
    model is altered. A copy made meanwhile is not.

    Args:
        model: any module that runs forward.
        changes: alterations by unit path as `skipway.inspect` prints it (``"layer1.0"``, ``"blocks.3.attn"``,
            ``"path@k"``, ``"path#k"``), or by shell pattern (``"layers.*"``, ``"*"``). A pattern alters those of its
            units that have what is to be altered; a unit's own path goes before patterns.
        batch: what the model is called with to find its units: a tensor, a tuple of positional arguments or a dict of
            keyword arguments; it is recorded and the units are proved, as by `skipway.inspect`. Without it this is
            done at the first call within, on copies of its arguments.

    Raises:
        SkipwayError: an alteration cannot be made at a unit, or would alter nothing; in a call, an altered unit was not
            met.
        UnknownNameError: a key matches no unit.
    """
    for key, alteration in changes.items():
        if not isinstance(alteration, Alteration):
            raise SkipwayError(
                f"changes[{key!r}] is of type {type(alteration).__name__}",
                "a skipway.Alteration",
                f"what_if(model, {{{key!r}: skipway.Alteration(branch=0.5)}})",
            )

    def planned(found_on: Batch) -> Plan:
        return plan_alterations(locate(model, found_on, proofs=True), changes, found_on)

    source = (lambda args, kwargs: planned(_as_batch(model, args, kwargs))) if batch is None else planned(batch)
    with intercepted(model, source):
        yield


def plan_alterations(located: Located, changes: Mapping[str, Alteration], batch: Batch) -> Plan:
    """What to do at which call, for a model whose units are located.

    Args:
        located: the model's units.
        changes: alterations by path or pattern.
        batch: what the units were found on.

    Raises:
        SkipwayError: an alteration cannot be made at a unit, or would alter nothing.
        UnknownNameError: a key matches no unit.
    """
    units = located.units()
    planner = Planner(located, batch)
    chosen = _chosen(located, changes)
    lacking: dict[str, list[list[Absent]]] = {}
    for path, key in chosen.items():
        absent = planner.alter(path, units[path], changes[key])
        if key == path and absent:
            raise absent[0]
        lacking.setdefault(key, []).append(absent)
    for key, found in lacking.items():
        for field in _everywhere(found):
            raise SkipwayError(
                f"none of the {len(found)} units that {key!r} matches can be altered so: {field.given}",
                field.expected,
                field.hint,
            )
    return planner.plan()


def _everywhere(found: list[list[Absent]]) -> list[Absent]:
    """What all units lack."""
    fewest = min(found, key=len)
    return [a for a in fewest if all(any(type(b) is type(a) and b.expected == a.expected for b in f) for f in found)]


def _chosen(located: Located, changes: Mapping[str, Alteration]) -> dict[str, str]:
    """The key that each altered unit follows."""
    units = located.units()
    if not units:
        raise SkipwayError(
            f"no residual units were found in {type(located.model).__name__} on {located.batch}",
            "a model with units",
            "skipway.inspect(model, batch) says what was seen instead",
        )
    chosen: dict[str, str] = {}
    for key in changes:
        if key in units:
            continue
        matched = [path for path in units if fnmatchcase(path, key)]
        if not matched:
            raise _unknown(key, located)
        for path in matched:
            if path in changes:
                continue
            if path in chosen:
                raise SkipwayError(
                    f"unit {path!r} is matched by two patterns, {chosen[path]!r} and {key!r}",
                    "one alteration for each unit",
                    f"a key {path!r} of its own",
                )
            chosen[path] = key
    chosen.update({key: key for key in changes if key in units})
    return {path: chosen[path] for path in units if path in chosen}


def _unknown(key: str, located: Located) -> SkipwayError:
    for path, proof in zip(located.paths, located.proofs, strict=True):
        if path == key:
            return SkipwayError(
                f"{key!r} looks like a residual unit and is not proved: {proof.reason}", "a unit that is proved"
            )
    return UnknownNameError("unit", key, located.units())


def _as_batch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch:
    """The arguments of a call as one batch; mixed ones are all given by keyword."""
    if not kwargs:
        return args
    if not args:
        return kwargs
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    if bound.args and any(
        p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) and name in bound.arguments
        for name, p in bound.signature.parameters.items()
    ):
        raise SkipwayError(
            "the first call has positional arguments that have no name beside keyword arguments",
            "a batch to find the units on",
            "what_if(model, changes, batch=...)",
        )
    named = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(name, {}))
    return named
