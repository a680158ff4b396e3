"""What of a model trains, in words: units that are frozen, parameters that have no part in the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.units.weights import alive_parameters, branch_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from skipway.units.describe import Described
    from skipway.units.links import Links
    from skipway.units.unit import Unit

__all__ = ["training_notes"]

_NAMED = 3


def training_notes(
    modules: Sequence[tuple[str, nn.Module]],
    units: Sequence[Unit],
    described: Sequence[Described],
    links: Links,
    *,
    idle: bool,
) -> Iterator[str]:
    """A note on units without any parameter that trains among others that have some, and one on parameters left out.

    Args:
        modules: the model's, each once, by path.
        units: with their places.
        described: the same, by nodes.
        links: of the recorded run.
        idle: whether to tell of parameters without a part in the output; not where a finding does.
    """
    trained: dict[str, nn.Parameter] = {}
    met = set[int]()
    for path, module in modules:
        for name, parameter in module._parameters.items():  # noqa: SLF001  # the public way nests generators
            if parameter is not None and id(parameter) not in met and parameter.requires_grad:
                trained[f"{path}.{name}" if path else name] = parameter
                met.add(id(parameter))  # a tied one has its first name
    weights = [branch_weights(unit, links) for unit in described] if trained else []
    frozen = [u.path for u, own in zip(units, weights, strict=False) if own and trained.keys().isdisjoint(own)]
    if frozen and len(frozen) < len(units):
        yield f"{len(frozen)} of {len(units)} units are frozen, their parameters need no gradient: {_some(frozen)}"
    unread = trained.keys() - alive_parameters(links) if idle else set()
    if unread:
        numbers = sum(trained[name].numel() for name in unread)
        share = f"{len(unread)} of {len(trained)} parameters that need a gradient ({numbers:,} weights)"
        where = _some(_outermost(unread, trained))
        yield f"{share} have no part in this output: {where}; DistributedDataParallel wants find_unused_parameters=True"


def _outermost(idle: set[str], trained: dict[str, nn.Parameter]) -> list[str]:
    """The largest modules all of whose parameters are idle, and parameters that are so alone, in the model's order."""
    alive_around = {around for name in trained if name not in idle for around in _around(name)}
    found: dict[str, None] = {}
    for name in trained:
        if name in idle:
            found[next((around for around in _around(name) if around not in alive_around), name)] = None
    return list(found)


def _around(name: str) -> list[str]:
    """Paths of the modules around a parameter, outermost first."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
