"""Rule ``missing-shortcut``: a unit among equals lacks its add, or a deep stack has none and its gradient decays."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.profile import gradient_curve
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.units.links import members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from skipway.diagnostics.finding import Finding
    from skipway.trace.graph import Graph, Node
    from skipway.units.links import Links

__all__ = ["missing_shortcut"]

_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.last = last
        self.branch = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, x):
        y = self.branch(x)
        return y if self.last else x + y


model = nn.Sequential(*[Block(last=k == 5) for k in range(6)])
batch = torch.randn(4, 16)
"""
_AS_GOOD: Final = ("the branch does no work", "the shortcut does not depend on the input")
_FEWEST_EQUALS: Final = 4
_SHARE_WITH_SHORTCUT: Final = 0.75
_DEEP: Final = 20
_DECAY: Final = 1e-2
_SHOWN: Final = 6
_NUMBER: Final = re.compile(r"\.\d+")


@rule(
    "missing-shortcut",
    severity="warning",
    summary="A unit among equals lacks its shortcut, or a deep stack has none and its gradient decays.",
    explanation="Modules of one class that keep their input's shape and mostly hold as many residual units, or are"
    " mostly the branch of one that their caller adds: those that have fewer are named. A stack of more than 20"
    " weighted layers without any unit is named only if the measured gradient falls to under 1/100 on the way to its"
    " first layer.",
    fix="add the module's input to its output: return x + self.branch(x)",
    source="He et al. 2015, arXiv 1512.03385, fig. 1 and 6",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("y if self.last else x + y", "x + y"),
    explains=("gradient-vanishing",),
)
def missing_shortcut(evidence: Evidence) -> Iterator[Finding]:
    """Fire for the odd one out among equal modules, and for deep stacks without units whose gradient decays."""
    yield from _odd_ones_out(evidence)
    curve = gradient_curve((), evidence.layers)
    if evidence.units or curve is None or len(curve.values) <= _DEEP or not curve.ratio < _DECAY:
        return
    yield RULES["missing-shortcut"].finding(
        "",
        f"{len(curve.values)} weighted layers in a row without a shortcut, and the gradient decays",
        {"layers": len(curve.values), "first_over_last": curve.ratio, "decay_per_layer": math.exp(-curve.slope)},
    )


@dataclass(frozen=True, slots=True)
class _Odd:
    """Calls that lack a shortcut, among `equals` that have `usual` ones each; the least of the odd has `fewest`."""

    calls: tuple[int, ...]
    equals: int
    usual: int
    fewest: int
    one_caller: bool


def _odd_ones_out(evidence: Evidence) -> Iterator[Finding]:
    graph = evidence.graph
    held = Counter(call for scope in evidence.scopes for call in scope)
    possible, added, partly = _possible(evidence, held), _added(evidence), _in_branches(evidence)
    work = _work(graph)
    inside: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    around: defaultdict[tuple[str, int, str], list[int]] = defaultdict(list)
    holders = {call.parent for call in graph.calls}  # a layer by itself is no block, whatever it weighs
    for call in graph.calls[1:]:
        if (
            call.input_shape
            and call.input_shape == call.output_shape
            and (work[call.id] > 1 or (work[call.id] and call.id in holders))
        ):
            inside[call.cls, work[call.id]].append(call.id)
            around[call.cls, work[call.id], _NUMBER.sub(".*", f".{call.path}")].append(call.id)
    blocks = [o for calls in inside.values() if (o := _odd(calls, held, possible, graph)) is not None]
    lacking = {c for o in blocks for c in o.calls}
    outer = {c for call in lacking for c in graph.chain(graph.calls[call].parent)}
    # The caller adds: what has no shortcut inside either is the odd one out.
    bare = [
        o
        for calls in around.values()
        if not any(possible[c] for c in calls) and (o := _odd(calls, added, partly, graph))
    ]
    unadded = [c for o in bare for c in o.calls]
    for odd in blocks:
        calls = [c for c in odd.calls if c not in outer]  # told of the innermost
        if calls:
            within = next((graph.calls[c].path for c in unadded if calls[0] in graph.chain(c)), "")
            yield _finding([graph.calls[c].path for c in calls], graph.calls[calls[0]].cls, odd, within)
    for odd in bare:
        calls = [c for c in odd.calls if not lacking.intersection(graph.chain(c))]
        if calls and odd.one_caller:
            yield _finding([graph.calls[c].path for c in calls], graph.calls[calls[0]].cls, odd)


def _finding(paths: Sequence[str], cls: str, odd: _Odd, within: str = "") -> Finding:
    others = f"unlike {odd.equals - len(odd.calls)} others of its kind"
    lack = f"has no shortcut, {others}" if not odd.fewest else f"lacks one of {odd.usual} shortcuts, {others}"
    which = f"; what {within} gives is not added to anything" if within and odd.fewest else ""
    more = f" \N{MULTIPLICATION SIGN}{len(paths)}: {', '.join(paths[:_SHOWN])}" if len(paths) > 1 else ""
    return RULES["missing-shortcut"].finding(
        paths[0],
        f"this {cls} {lack}{which}{more}",
        {"equals": odd.equals, "without_shortcut": len(odd.calls), "shortcuts_of_equals": odd.usual},
    )


def _odd(calls: Sequence[int], counts: Mapping[int, int], possible: Mapping[int, int], graph: Graph) -> _Odd | None:
    """The few of many equal calls that have fewer shortcuts than the others, even if all that are possible count."""
    usual, share = Counter(counts[c] for c in calls).most_common(1)[0]
    lacking = tuple(c for c in calls if max(counts[c], possible[c]) < usual)
    if len(calls) < _FEWEST_EQUALS or not lacking or share < _SHARE_WITH_SHORTCUT * len(calls):
        return None
    return _Odd(
        lacking, len(calls), usual, min(counts[c] for c in lacking), len({graph.calls[c].parent for c in calls}) == 1
    )


def _possible(evidence: Evidence, held: Mapping[int, int]) -> Counter[int]:
    """How many sums lie within each call that may be a shortcut's.

    Candidates that were not proved to be units, sums of streams that have nothing in common, as where two streams meet
    first, sums of a stream with itself (in the first block of those that add the embedding anew) or of learned queries,
    and sums whose result is lost (see dead-op). A module that is called again has the code for as many as show in any
    of its calls: a first pass may differ.
    """
    graph, links = evidence.graph, evidence.found.links
    joins = {c.join for c in evidence.found.candidates}
    joins |= {r.join for r in evidence.found.rejected if r.reason in _AS_GOOD or _meet_first(r.join, links)}
    joins |= {n.id for n in graph.nodes if n.op == "add" and not n.data and _sums_computed(n, graph)}
    joins |= {n.id for n in graph.nodes if n.op == "add" and not links.alive[n.id] and len(links.data_inputs(n)) == 2}
    found = Counter(call for join in joins for call in graph.chain(graph.nodes[join].call))
    shown: dict[str, int] = {}
    for call, count in held.items():
        path = graph.calls[call].path
        shown[path] = max(shown.get(path, 0), count)
    return found | Counter({call.id: shown[call.path] for call in graph.calls if call.path in shown})


def _sums_computed(node: Node, graph: Graph) -> bool:
    """Whether both operands of a sum are floats that were computed, from parameters alone."""
    return len(node.inputs) == 2 and all(graph.nodes[i].floating and graph.nodes[i].inputs for i in node.inputs)


def _meet_first(join: int, links: Links) -> bool:
    """Whether the operands of a sum have no value in common that depends on an input."""
    data = links.data_inputs(links.nodes[join])
    if len(data) != 2:
        return False
    first, second = (links.ancestors[i] | 1 << i for i in data)
    return not any(links.nodes[i].data for i in members(first & second))


def _added(evidence: Evidence) -> Counter[int]:
    """Which calls give what their caller adds to the stream."""
    graph, links = evidence.graph, evidence.found.links
    found: set[int] = set()
    for unit in evidence.described:
        around = set(graph.chain(graph.nodes[unit.candidate.join].call))
        for tail in unit.tails:
            end = graph.nodes[links.strip(tail.output)].call
            found.update(c for c in graph.chain(end) if c not in around)
    return Counter(found)


def _in_branches(evidence: Evidence) -> Counter[int]:
    """Which calls take part in a branch of which they need not be the end: paddings may stand behind them."""
    graph = evidence.graph
    found: set[int] = set()
    for candidate in evidence.found.candidates:
        around = set(graph.chain(graph.nodes[candidate.join].call))
        inside = {graph.nodes[i].call for i in candidate.region}
        found.update(c for call in inside for c in graph.chain(call) if c not in around)
    return Counter(found)


def _work(graph: Graph) -> list[int]:
    work = [0] * len(graph.calls)
    for node in graph.nodes:
        if node.op in ops.WORKING:
            work[node.call] += 1
    for call in reversed(graph.calls[1:]):  # a call comes after the one around it
        work[call.parent] += work[call.id]
    return work
