"""What random numbers decide in Python's flow: which modules run, which parameters take part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.trace import ops
from skipway.units.links import Links
from skipway.units.weights import alive_parameters

if TYPE_CHECKING:
    from skipway.diagnostics.lab import Lab
    from skipway.diagnostics.rules._rule import Evidence

__all__ = ["SEEDS", "Chance", "chance", "draws_for_python"]

SEEDS: Final = 8


@dataclass(frozen=True)
class Chance:
    """What differs between runs with other random numbers.

    Args:
        sources: whose random numbers decide in Python: ``numpy``, ``python``, ``torch``.
        varying: modules that ran in some runs and not in others; None where no runs were made.
        graphs: how many different sequences of operations the runs were, each a graph of its own to a compiler; 0
            where no runs were made.
        parameters: names of the trained parameters that the output depends on in some runs and not in others.
    """

    sources: tuple[str, ...]
    varying: tuple[str, ...] | None
    graphs: int
    parameters: tuple[str, ...]


def chance(evidence: Evidence, asks: str) -> Chance | None:
    """What chance decides in Python; None where nothing hints at it."""
    outside = sorted(evidence.trace.drawn_from - {"torch"})
    unread = draws_for_python(evidence)
    if not (outside or unread) or evidence.trace.error is not None:
        return None
    sources = (*outside, *(("torch",) if unread else ()))
    if evidence.lab is None:
        return Chance(sources, None, 0, ())
    lab = evidence.lab
    return evidence.once("chance", lambda: _measured(evidence, lab, asks, sources))


def _measured(evidence: Evidence, lab: Lab, asks: str, sources: tuple[str, ...]) -> Chance:
    called: list[frozenset[str]] = []
    read: list[frozenset[str]] = []
    graphs = set[tuple[tuple[str, str], ...]]()
    for seed in range(SEEDS):
        try:
            graph = lab.trace(asks, mode="train", seed=seed).graph
        except Exception:  # noqa: BLE001  # a model that fails in train mode says nothing of chance
            return Chance(sources, None, 0, ())
        called.append(frozenset(call.path for call in graph.calls))
        read.append(alive_parameters(Links(graph)))
        graphs.add(tuple((graph.calls[node.call].path, node.op) for node in graph.nodes if node.source))
    order = {name: k for k, (name, _) in enumerate(evidence.model.named_modules())}
    varying = sorted(frozenset.union(*called) - frozenset.intersection(*called), key=lambda p: order.get(p, -1))
    trained = {n for n, p in evidence.model.named_parameters() if p.requires_grad}
    left_out = (frozenset.union(*read) - frozenset.intersection(*read)) & trained
    parameters = [n for n, _ in evidence.model.named_parameters() if n in left_out]
    return Chance(sources, tuple(varying), len(graphs), tuple(parameters))


def draws_for_python(evidence: Evidence) -> bool:
    """Whether a random tensor was drawn that no result depends on."""
    links = evidence.found.links
    drawn = "torch" in evidence.trace.drawn_from
    return drawn and any(n.op in ops.RANDOM and not links.alive[n.id] for n in links.nodes)
