"""What the stream passes outside of its units: between two of them, before the first and behind the last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from skipway.form import Op
from skipway.trace import ops
from skipway.units.describe import Describer
from skipway.units.links import members
from skipway.units.passage import Passage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.trace.graph import ModuleCall
    from skipway.units.describe import Described
    from skipway.units.find import Candidate, Found
    from skipway.units.links import Links
    from skipway.units.unit import Kind, Unit

__all__ = ["head", "passages", "stem"]


def passages(units: Sequence[Described], kinds: Sequence[Kind], found: Found) -> list[Passage | None]:
    """What stands between each unit's x and the stream behind the unit that it follows; None where nothing does.

    A unit follows the last of those before it, on the same stream, that its x is computed from. Views, and what leaves
    numbers alone, are nothing. Halves of reversible blocks have two streams, and are left out.
    """
    outer = _outer(units, kinds)
    ends: dict[int | None, int] = {}
    for unit in units:
        group = outer.get(unit.candidate.join)
        ends[group] = ends.get(group, 0) | _ends(unit, found)
    describer = Describer(found)
    return [
        _before(unit.candidate, ends[outer.get(unit.candidate.join)], describer)
        if kind in ("unit", "merge") and not unit.candidate.pair
        else None
        for unit, kind in zip(units, kinds, strict=True)
    ]


def _outer(units: Sequence[Described], kinds: Sequence[Kind]) -> dict[int, int]:
    """The join of the innermost unit around each unit that lies in a branch."""
    around: dict[int, int] = {}
    for unit, kind in sorted(zip(units, kinds, strict=True), key=lambda pair: pair[0].candidate.join):
        if kind in ("unit", "merge"):
            for join in unit.candidate.inner:
                around.setdefault(join, unit.candidate.join)
    return around


def _ends(unit: Described, found: Found) -> int:
    """Bit set of the nodes behind which a unit is over."""
    strip = found.links.strip
    return 1 << strip(unit.candidate.join) | 1 << strip(unit.end)


def _before(unit: Candidate, ends: int, describer: Describer) -> Passage | None:
    links = describer.links
    base = links.strip(unit.base)
    before = links.ancestors[base] & ends
    if ends >> base & 1 or not before:
        return None
    start = before.bit_length() - 1
    return _passage(start, base, links.between(start, base), (start, unit.join), unit, describer)


def stem(units: Sequence[Described], reported: Sequence[Unit], found: Found) -> Passage | None:
    """What stands between the model's input and the first unit of the main stream; None for nothing, or no unit.

    Args:
        units: in order of execution.
        reported: their records.
        found: the graph's candidates.
    """
    main = _main(units, reported)
    if not main:
        return None
    links, first = found.links, main[0].candidate
    base = links.strip(first.base)
    data = [i for i in members(links.ancestors[base] | 1 << base) if links.is_data(i)]
    start = next((i for i in data if not links.data_inputs(links.nodes[i])), base)
    made = bool(links.nodes[start].inputs)  # of what is no floating number: tokens are looked up
    return _passage(start, base, links.between(start, base) | made << start, (first.join,), first, Describer(found))


def head(units: Sequence[Described], reported: Sequence[Unit], found: Found) -> Passage | None:
    """What stands between the last unit of the main stream and the output; None for nothing, or no unit.

    Of several outputs it is the first that a unit leads to. Arguments as of `stem`.
    """
    links, main = found.links, _main(units, reported)
    for output in (links.strip(i) for i in links.graph.outputs):
        before = [d for d in main if links.strip(d.end) == output or links.descends(output, d.end)]
        if before:
            start = links.strip(before[-1].end)
            return _passage(
                start, output, links.between(start, output), (start,), before[-1].candidate, Describer(found)
            )
    return None


def _main(units: Sequence[Described], reported: Sequence[Unit]) -> list[Described]:
    """The units of the main stream."""
    pairs = zip(units, reported, strict=True)
    return [found for found, unit in pairs if unit.level == 0 and unit.kind in ("unit", "merge")]


def _passage(
    start: int, end: int, bits: int, sides: tuple[int, ...], unit: Candidate, describer: Describer
) -> Passage | None:
    """The operations on the ways from `start` to `end`.

    Args:
        start: where they begin.
        end: the node that they give.
        bits: bit set of their nodes; `start` is one of them only where it is made of the model's input.
        sides: nodes of the units around.
        unit: one of these, for the form of the answer.
        describer: writes them down.
    """
    links, region = describer.links, members(bits & ~(1 << start))
    passed = describer.line(end, replace(unit, x=start, base=start, reads=None, region=frozenset(region)))
    if bits >> start & 1 and links.nodes[start].op in ops.LOOKUP:
        region, passed = [start, *region], (Op("weight", "embedding"), *passed)
    if not passed:
        return None
    inside = bits | 1 << start
    closed = all(inside >> j & 1 for i in region for j in links.data_inputs(links.nodes[i]))
    return Passage(path=_path(region, sides, links), ops=passed, closed=closed)


def _path(region: Sequence[int], sides: tuple[int, ...], links: Links) -> str:
    """Where a passage is: the call that holds all of it and nothing of a unit, or the first and the last of several.

    Args:
        region: its nodes.
        sides: nodes of the units around it.
        links: relations of the graph.
    """
    graph, nodes = links.graph, links.nodes
    working = [i for i in region if nodes[i].op not in ops.VIEW] or region
    chains = [graph.chain(nodes[i].call) for i in working]
    units = {call for i in sides for call in graph.chain(nodes[i].call)}
    around = _innermost(chains)
    if around not in units:
        whole = [call for call in graph.chain(around) if call not in units]
        return _name(graph.calls[whole[-1]])
    inside: dict[int, list[tuple[int, ...]]] = {}  # by what is called next below it, in order
    for chain in chains:
        below = chain.index(around)
        inside.setdefault(chain[below - 1] if below else around, []).append(chain)
    ends = [_name(graph.calls[_innermost(below)]) for below in inside.values()]
    return _name(graph.calls[around]) if around in inside else ends[0] if len(ends) == 1 else f"{ends[0]} … {ends[-1]}"


def _innermost(chains: Sequence[tuple[int, ...]]) -> int:
    common = set(chains[0]).intersection(*chains[1:])
    return next(c for c in chains[0] if c in common)


def _name(call: ModuleCall) -> str:
    return (call.path or "<root>") + (f"@{call.number}" if call.number else "")
