"""Judge the inspector on the public models: `python tests/zoo/score.py [--only PATTERN] [--processes 2] [--train]`.

Prints a line for every model that is not entirely right, then the totals: units right of those with known truth,
shortcut and after kinds right, largest proof error, joins left unexplained, seconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

from zoo.compare import after_of, agrees, histogram, shortcut_of
from zoo.models import ZOO, select

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Score", "judge", "main"]


@dataclass(frozen=True)
class Score:
    """How one model came out.

    Args:
        name: the model.
        wrong: what differs from the truth, in words.
        count_right, shortcut_right, after_right: None where there is no truth.
        proof_error: largest over the units, in eps.
        unproved: units without a proof.
        unexplained: reasons and how often.
        seconds: of the inspection alone, structure only with proofs.
        error: the inspector's own failure.
    """

    name: str
    wrong: list[str] = field(default_factory=list)
    count_right: bool | None = None
    shortcut_right: bool | None = None
    after_right: bool | None = None
    units: int = 0
    proof_error: float = 0.0
    unproved: int = 0
    unexplained: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    error: str = ""


def judge(name: str, *, train: bool = False) -> Score:
    """Inspect one model of the zoo and compare with its truth."""
    from skipway.diagnostics.inspect import inspect

    entry = ZOO[name]
    model, batch = entry.make()
    if train:
        model.train()
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = inspect(model, batch, structure_only=True)
    except Exception:  # noqa: BLE001  # whatever the inspector raises is the result here
        return Score(name, ["raised"], count_right=False, error=traceback.format_exc())
    seconds = time.perf_counter() - start

    truth, wrong = entry.truth, []
    kinds = Counter(u.kind for u in found.units)
    judged = [u for u in found.units if u.kind in ("unit", "long_skip")]
    count = None if truth.units is None else kinds["unit"] == truth.units and kinds["long_skip"] == truth.long_skips
    if count is False:
        wrong.append(f"units {dict(kinds)}, expected {truth.units} and {truth.long_skips} long skips")
    if truth.cells and kinds["cell"] != truth.cells:
        wrong.append(f"cells {kinds['cell']}, expected {truth.cells}")
    right: list[bool | None] = []
    for label, of, expected in (("h", shortcut_of, truth.shortcut), ("f", after_of, truth.after)):
        names = [of(u.form) for u in judged]
        right.append(None if expected is None else agrees(names, expected))
        if right[-1] is False:
            wrong.append(f"{label} {histogram(names)}, expected {expected}")
    errors = [u.proof_error for u in found.units if u.proof_error is not None]
    unproved = sum(u.proof_error is None for u in judged)
    return Score(
        name, wrong, count, right[0], right[1], len(found.units), max(errors, default=0.0), unproved,
        Counter(u.reason for u in found.unexplained), seconds,
    )  # fmt: skip


def _ready() -> None:
    """One thread a process, and no chatter of the libraries under test."""
    import logging

    import torch

    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore")


def _judge_in_train(name: str) -> Score:
    return judge(name, train=True)


def report(scores: Iterable[Score]) -> int:
    """Print every deviation and the totals; return the number of models with a wrong count or an error."""
    kept = []
    for s in scores:
        kept.append(s)
        if s.wrong or s.unexplained or s.unproved or s.error:
            listed = "; ".join(f"{n}× {reason}" for reason, n in s.unexplained.most_common())
            notes = [
                *s.wrong,
                *([f"{s.unproved} not proved"] if s.unproved else []),
                *([f"({listed})"] if listed else []),
            ]
            print(f"{'✗' if s.wrong else ' '} {s.name}: " + " | ".join(filter(None, notes)), flush=True)
            if s.error:
                print("    " + s.error.strip().replace("\n", "\n    "), flush=True)
    known = [s for s in kept if s.count_right is not None]
    shortcuts = [s.shortcut_right for s in kept if s.shortcut_right is not None]
    afters = [s.after_right for s in kept if s.after_right is not None]
    worst = max(kept, key=lambda s: s.proof_error)
    listed_by_model = {s.name: sum(s.unexplained.values()) for s in kept if s.unexplained}
    print(f"models            {len(kept)}, of which {sum(bool(s.error) for s in kept)} raised")
    print(f"unit counts right {sum(bool(s.count_right) for s in known)} of {len(known)}")
    print(f"shortcuts right   {sum(shortcuts)} of {len(shortcuts)}")
    print(f"afters right      {sum(afters)} of {len(afters)}")
    print(f"merges reported   {sum(s.units for s in kept)}, not proved {sum(s.unproved for s in kept)}")
    print(f"largest proof     {worst.proof_error:.3g} eps ({worst.name})")
    print(f"unexplained joins {sum(listed_by_model.values())} in {len(listed_by_model)} models")
    print(f"seconds           {sum(s.seconds for s in kept):.1f}")
    return sum(s.count_right is False for s in kept)


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; exit code 1 if a unit count is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="part of a name, or a pattern with * and ?")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--train", action="store_true", help="inspect in train mode")
    options = parser.parse_args(argv)
    names = [m.name for m in select(options.only)]
    if not names:
        parser.error(f"no model of the zoo matches {options.only!r}")
    work = _judge_in_train if options.train else judge
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with multiprocessing.get_context("spawn").Pool(options.processes, initializer=_ready) as pool:
        return 1 if report(pool.imap(work, names)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
