"""From candidates and their proofs to units, and to what is listed as not explained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from skipway.units.between import passages
from skipway.units.kinds import cost, is_closed, kinds, levels
from skipway.units.merges import mixing_joins
from skipway.units.naming import paths, place_of
from skipway.units.unit import Unexplained, Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.units.describe import Described
    from skipway.units.find import Found
    from skipway.units.prove import Proof

__all__ = ["TRIVIAL", "judge"]

TRIVIAL: Final = "the branch does no work"


def judge(
    found: Found, described: list[Described], proofs: Sequence[Proof], *, skipped: bool
) -> tuple[list[Described], list[Unit], list[Unexplained]]:
    """The units that are proved with the nodes behind them, and the joins that are not explained.

    Args:
        found: candidates and rejected joins.
        described: the candidates with their formulas.
        proofs: one for each.
        skipped: whether no proofs were made, so that candidates count without.
    """
    links = found.links
    named = paths(described, links)
    kinds_ = kinds(described, links)
    depths = levels(described, kinds_)
    unproved_everywhere = skipped or all(p.reason.startswith("no numbers") for p in proofs)
    kept: list[Described] = []
    units: list[Unit] = []
    unexplained: list[Unexplained] = []
    for unit, path, kind, level, proof in zip(described, named, kinds_, depths, proofs, strict=True):
        if not proof.holds and not unproved_everywhere:
            unexplained.append(
                Unexplained(path, "add", f"looks like {unit.form.equation()}, not proved: {proof.reason}")
            )
            continue
        end, price = links.nodes[unit.end], cost(unit, links)
        kept.append(unit)
        units.append(
            Unit(
                index=len(units),
                path=path,
                kind=kind,
                level=level,
                form=unit.form,
                proof_error=proof.error,
                closed=is_closed(unit, links),
                shape=end.shape,
                dtype=str(end.dtype).removeprefix("torch."),
                parameters=price.parameters,
                flops=price.flops,
                activation_bytes=price.activation_bytes,
            )
        )
    before = passages(kept, [u.kind for u in units], found)
    units = [replace(unit, before=passed) for unit, passed in zip(units, before, strict=True)]
    unexplained += [
        Unexplained(place_of(r.join, links), "add", r.reason) for r in found.rejected if r.reason != TRIVIAL
    ]
    unexplained += [Unexplained(place_of(i, links), links.nodes[i].op, reason) for i, reason in mixing_joins(found)]
    return kept, units, unexplained
