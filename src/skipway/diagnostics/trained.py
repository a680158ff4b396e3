"""What of a model trains, in words: units that are frozen, parameters that have no part in the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.diagnostics.words import first_of
from skipway.units.weights import alive_parameters, branch_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from skipway.diagnostics.rules import Evidence

__all__ = ["training_notes"]


def training_notes(evidence: Evidence, *, idle: bool) -> Iterator[str]:
    """A note on units without any parameter that trains among others that have some, and one on parameters left out.

    Args:
        evidence: what the inspection knows.
        idle: whether to tell of parameters without a part in the output; not where a finding does.
    """
    trained, links = evidence.trained, evidence.found.links
    if 0 < len(trained) < len(links.graph.parameter_names):
        weights = [branch_weights(unit, links) for unit in evidence.described]
        frozen = [
            u.path for u, own in zip(evidence.units, weights, strict=True) if own and trained.keys().isdisjoint(own)
        ]
        if 0 < len(frozen) < len(weights):
            yield (
                f"{len(frozen)} of {len(weights)} units are frozen, their parameters need no gradient:"
                f" {first_of(frozen)}"
            )
    unread = set(trained) - alive_parameters(links) if idle else set()
    if unread:
        numbers = sum(trained[name].numel() for name in unread)
        share = f"{len(unread)} of {len(trained)} parameters that need a gradient ({numbers:,} weights)"
        where = first_of(_outermost(unread, trained))
        yield f"{share} have no part in this output: {where}; DistributedDataParallel wants find_unused_parameters=True"


def _outermost(idle: set[str], trained: Mapping[str, nn.Parameter]) -> list[str]:
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
