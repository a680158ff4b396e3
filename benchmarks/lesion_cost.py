"""What lesions of each unit cost: runs of the whole model, with the state before the unit reused and without.

    python benchmarks/lesion_cost.py [--repeats N] [--batch N] [--results FILE]

One thread, processor time. For every net each unit is deleted once by itself, in turn with reuse, without, and after
one ordinary forward run; a ratio is formed within a repeat: the time of the lesion over that of the forward run, so
that L deletions and the baseline make L + 1 without reuse and 1 + (L + 1)/2 with it, plus what finding and proving the
units takes. Median over repeats; the spread is the largest minus the smallest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from results_file import machine, tell

_ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / "src")]

import skipway  # noqa: E402  # after the path above

if TYPE_CHECKING:
    from collections.abc import Callable

TITLE: Final = "Cost of lesions (`benchmarks/lesion_cost.py`)"
MODELS: Final = {"resnet56@preact": None, "resnet110@preact": None, "plain56": "auto", "gpt_nano": None}


def timed(action: Callable[[], object]) -> float:
    """Processor seconds of one call: not blurred by what else the machine does."""
    start = time.process_time()
    action()
    return time.process_time() - start


def measure(name: str, blocks: str | None, batch_size: int, repeats: int) -> tuple[int, dict[str, list[float]]]:
    """Units deleted, and runs of the whole model that each way takes, one number per repeat."""
    torch.manual_seed(0)
    model = skipway.create_model(name).eval()
    batch = model.dummy_input(batch_size)
    ratios: dict[str, list[float]] = {"reused": [], "in full": []}
    deleted = 0
    with torch.no_grad():
        model(batch)
        for _ in range(repeats):
            whole = timed(lambda: model(batch))
            for way, times in ratios.items():
                start = time.process_time()
                found = skipway.lesion(model, batch, blocks=blocks, reuse=way == "reused")
                times.append((time.process_time() - start) / whole)
                deleted = len(found.each)
    return deleted, ratios


def main() -> int:
    """Measure all models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        (
            f"{machine(('torch',))}; one thread, batch {options.batch}, {options.repeats} repeats. Runs of the whole "
            "model (median, spread) for deleting each unit by itself."
        ),
        "",
        "| model | deleted | state reused | every run in full | ratio |",
        "|---|---|---|---|---|",
    ]
    for name, blocks in MODELS.items():
        deleted, ratios = measure(name, blocks, options.batch, options.repeats)
        cells = [f"{statistics.median(r):.1f} ({max(r) - min(r):.1f})" for r in ratios.values()]
        ratio = statistics.median(a / b for a, b in zip(*ratios.values(), strict=True))
        lines.append(f"| {name} | {deleted} | {' | '.join(cells)} | {ratio:.2f} |")
        print(lines[-1], flush=True)
    tell(lines, TITLE, options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
