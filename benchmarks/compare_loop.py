"""`skipway compare` beside a shell loop of `skipway train`: the same runs, wall-clock.

    python benchmarks/compare_loop.py [--models NAME …] [--seeds N] [--steps N] [--repeats N] [--results FILE]

On scikit-learn's digits, so that starting, inspecting and reporting weigh as much as they ever do. The loop runs one
training after the other, each with the threads that PyTorch takes by itself; `compare` runs as many at a time as there
are cores, and reports. Both start from nothing; a ratio is formed within a repeat, and who begins alternates.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from results_file import machine, tell

TITLE: Final = "Comparisons beside a shell loop (`benchmarks/compare_loop.py`)"


def skipway(*words: str) -> None:
    """Run a command of ours, quietly; it has to succeed."""
    subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-m", "skipway", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def loop(models: list[str], seeds: int, steps: int, folder: str) -> float:
    """Seconds of the loop."""
    start = time.perf_counter()
    for model in models:
        for seed in range(seeds):
            out = str(Path(folder) / f"{model}-{seed}")
            skipway("train", model, "--data", "digits", "--steps", str(steps), "--seed", str(seed), "--out", out)
    return time.perf_counter() - start


def compare(models: list[str], seeds: int, steps: int, folder: str) -> float:
    """Seconds of the comparison."""
    start = time.perf_counter()
    out = str(Path(folder) / "comparison")
    skipway("compare", *models, "--data", "digits", "--steps", str(steps), "--seeds", str(seeds), "--out", out)
    return time.perf_counter() - start


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["plain20", "resnet20", "resnet20@preact"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, help="Markdown file whose section is to be replaced")
    options = parser.parse_args(argv)
    rows: list[dict[str, float]] = []
    for repeat in range(options.repeats):
        order = [("loop", loop), ("compare", compare)][:: 1 if repeat % 2 == 0 else -1]
        rows.append({})
        for name, run in order:
            with tempfile.TemporaryDirectory() as folder:
                rows[-1][name] = run(options.models, options.seeds, options.steps, folder)
        print(f"repeat {repeat}: {rows[-1]}", file=sys.stderr, flush=True)
    ratios = [row["loop"] / row["compare"] for row in rows]
    runs = len(options.models) * options.seeds
    both = {name: statistics.median(row[name] for row in rows) for name in ("loop", "compare")}
    what = f"{runs} runs ({', '.join(options.models)}; {options.seeds} seeds) of {options.steps} steps on digits"
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"
    lines = [
        f"{machine(('torch',))}; {os.cpu_count()} cores. {what}, {options.repeats} repeats, paired.",
        "",
        "| shell loop, s | `skipway compare`, s | loop / compare, median (least – most) |",
        "| --- | --- | --- |",
        f"| {both['loop']:.0f} | {both['compare']:.0f} | {spread} |",
    ]
    tell(lines, TITLE, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
