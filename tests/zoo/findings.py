"""Findings on the public models: `python tests/zoo/findings.py [--rules a,b] [--eval] [MODEL…]`, a line for each."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path

if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

import torch

from skipway.diagnostics.inspect import inspect
from zoo.models import ZOO, select


def main() -> None:
    """Print ``model rule severity path message`` of every finding, and a line for each model that raised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or patterns; all by default")
    parser.add_argument("--rules", default="", help="only these rules, divided by commas")
    parser.add_argument("--eval", action="store_true", help="in eval mode; in train mode by default")
    args = parser.parse_args()
    wanted = set(filter(None, args.rules.split(",")))
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore")
    for entry in [m for pattern in args.models for m in select(pattern)] if args.models else ZOO.values():
        name, (model, batch) = entry.name, entry.make()
        model.train(not args.eval)
        started = time.perf_counter()
        try:
            found = inspect(model, batch)
        except Exception as error:  # noqa: BLE001  # whatever the inspector raises is the result here
            print(f"{name} RAISED {type(error).__name__}: {error}", flush=True)
            continue
        for f in found.findings:
            if not wanted or f.rule in wanted:
                print(f"{name} {f.rule} {f.severity} {f.path!r} {f.message}", flush=True)
        print(f"# {name} {time.perf_counter() - started:.1f} s {dict(found.runs)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
