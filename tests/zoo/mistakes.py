"""Prove a model's units with deliberately wrong formulas: how far does each mistake miss?

`python tests/zoo/mistakes.py [--only PATTERN]` prints the smallest error of each mistake over the public models.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from skipway.trace.record import record
from skipway.units.describe import describe
from skipway.units.find import find
from skipway.units.prove import BOUND_EPS, WRONG, prove
from zoo.models import ZOO, select

__all__ = ["Mistakes", "mistakes"]


@dataclass(frozen=True)
class Mistakes:
    """Errors in eps over the units of one model.

    Args:
        right: largest error of the right formula.
        smallest: smallest error with a wrong x, h, f or s, by mistake, and the unit's number.
        undecided: units that were not proved, with the reason.
    """

    right: float
    smallest: dict[str, tuple[float, int]] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)


def mistakes(name: str) -> Mistakes:
    """Record a model of the zoo, find its units, and prove each with the right formula and with four wrong ones."""
    model, batch = ZOO[name].make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = find(record(model, batch).graph)
        proofs, _ = prove(model, batch, describe(found), found.links, wrong=WRONG)
    smallest = {
        kind: min((p.wrong[kind], k) for k, p in enumerate(proofs) if kind in p.wrong)
        for kind in WRONG
        if any(kind in p.wrong for p in proofs)
    }
    right = max((p.error for p in proofs if p.error is not None), default=0.0)
    return Mistakes(right, smallest, [p.reason for p in proofs if not p.holds])


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; exit code 1 if a wrong formula came within 100 times the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="part of a name, or a pattern with * and ?")
    names = [m.name for m in select(parser.parse_args(argv).only)]
    found = {name: mistakes(name) for name in names}
    worst, model = max((m.right, name) for name, m in found.items())
    print(f"right formula   largest error  {worst:12.3g} eps  {model}")
    least = float("inf")
    for kind in WRONG:
        errors = [(*m.smallest[kind], name) for name, m in found.items() if kind in m.smallest]
        if errors:
            error, unit, name = min(errors)
            least = min(least, error)
            print(f"wrong {kind}         smallest error {error:12.3g} eps  {name}, unit {unit}")
    for name, m in found.items():
        for reason in dict.fromkeys(m.undecided):
            print(f"not proved: {m.undecided.count(reason)} of {name}: {reason}")
    return int(least < 100 * BOUND_EPS)


if __name__ == "__main__":
    raise SystemExit(main())
