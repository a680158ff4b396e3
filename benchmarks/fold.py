"""What folding batch norms gains: latency of the eval model, and of its folded copy.

    python benchmarks/fold.py [--repeats N] [--batch N] [--results FILE]

Both run on the same random images without gradients, one after the other in every repeat, in NCHW and channels-last.
Ratios are formed within a repeat; shown are the median and the spread. Time is the process's own (one thread), warm-up
left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from results_file import machine, tell

from skipway.models import create_model
from skipway.models.fold import fold

if TYPE_CHECKING:
    from torch import Tensor, nn

MODELS: Final = ("resnet56", "resnet56@preact", "resnet164@preact", "resnet50", "resnet50@preact")
TITLE: Final = "Folded batch norms (`benchmarks/fold.py`)"
WARM: Final = 2


def seconds(model: nn.Module, x: Tensor) -> float:
    start = time.process_time()
    model(x)
    return time.process_time() - start


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} – {max(values):.2f})"


def rows(name: str, batch: int, repeats: int) -> list[str]:
    lines: list[str] = []
    for layout, memory_format in (("NCHW", torch.contiguous_format), ("channels-last", torch.channels_last)):
        torch.manual_seed(0)
        plain = create_model(name).eval().to(memory_format=memory_format)  # type: ignore[call-overload]
        folded = fold(plain)
        x = plain.dummy_input(batch).contiguous(memory_format=memory_format)
        for model in (plain, folded) * WARM:
            model(x)
        pairs = [(seconds(plain, x), seconds(folded, x)) for _ in range(repeats)]
        before, after = (1e3 * statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        ratio = spread([a / b for a, b in pairs])
        count = f"{len(folded.folding)} of {len(folded.folding.norms)}"
        lines.append(f"| {name} | {layout} | {count} | {before:.1f} | {after:.1f} | {ratio} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        f"{machine(('torch',))}. 1 thread, batch {options.batch}, {options.repeats} repeats, paired; process time.",
        "",
        "| model | layout | norms in weights | eval, ms | folded, ms | eval / folded: median (least – most) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    with torch.inference_mode():
        for name in MODELS:
            lines += rows(name, options.batch, options.repeats)
    tell(lines, TITLE, options.results)


if __name__ == "__main__":
    main()
