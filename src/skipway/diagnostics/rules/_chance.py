"""What mode, random numbers and content decide: which modules run, which parameters take part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.trace import ops
from skipway.units.links import Links
from skipway.units.weights import alive_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.lab import Lab, Mode
    from skipway.diagnostics.rules._rule import Evidence

__all__ = ["SEEDS", "Chance", "chance", "choosing", "draws_for_python", "further_runs"]

SEEDS: Final = 8
# What chooses by content: the experts that no token of this batch was sent to are not dead.
_ROUTING: Final = frozenset({"topk", "nonzero", "argmax", "argmin", "sort", "argsort", "one_hot", "multinomial"})


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


def further_runs(evidence: Evidence, asks: str) -> Iterator[Links]:
    """Runs in which a module may be used that was not: in the other mode, and with other random numbers."""
    if evidence.lab is None:
        return
    other: Mode = "eval" if evidence.model.training else "train"
    for mode, seed in ((other, None), (None, 0), (None, 1)):
        try:
            links = Links(evidence.lab.trace(asks, mode=mode, seed=seed).graph)
        except Exception:  # noqa: BLE001, S112  # a model that cannot be run so (BatchNorm of one sample) tells nothing
            continue
        yield links


def choosing(links: Links) -> set[str]:
    """Paths of the modules in whose forward something is chosen by content."""
    calls = links.graph.calls
    return {calls[n.call].path for n in links.nodes if n.op in _ROUTING and any(links.nodes[j].data for j in n.inputs)}
