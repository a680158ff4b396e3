"""What the gradient by path length costs: time of each carried vector against one ordinary backward pass.

    python benchmarks/path_spectrum.py [--only PATTERN] [--length K] [--repeats N] [--results FILE]

One thread, default K = 8. For every model a forward run is made with its joins marked and its graph kept; then each
repeat times, one after the other: an ordinary backward pass over the graph of the same model without marks (gradient at
the stream of the first unit), all parts 0 … K and "longer" carried together, and the same carried one by one. A ratio
is formed within a repeat, divided by the K + 2 vectors that are carried (K + 1 where nothing is longer), and a model
counts with the median of its ratios; the spread is the largest minus the smallest. The limit is 1.2 for each vector.

The cost by depth: the same for pre-activation nets of growing depth, seconds for each unit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from results_file import machine, tell

_ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / "src")]

import skipway  # noqa: E402  # after the path above
from skipway.diagnostics.path_spectrum.run import degrees  # noqa: E402  # as above
from skipway.diagnostics.path_spectrum.scene import set_up  # noqa: E402  # as above

if TYPE_CHECKING:
    from collections.abc import Callable

TITLE: Final = "Cost of the gradient by path length (`benchmarks/path_spectrum.py`)"
MODELS: Final = {
    "resnet56@preact": (8, 3, 32, 32), "resnet110@preact": (8, 3, 32, 32), "tv:resnet50": (4, 3, 64, 64),
    "tv:vit_b_32": (1, 3, 224, 224), "gpt_nano": (8, 64), "hf:gpt2": (2, 64),
}  # fmt: skip
DEPTHS: Final = ("resnet56@preact", "resnet110@preact", "resnet218@preact")
WAYS: Final = ("together", "one by one")
LIMIT: Final = 1.2


@dataclass
class Measured:
    """Seconds by what was done, one per repeat; `vectors` is how many gradients are carried."""

    name: str
    units: int
    vectors: int
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, way: str) -> list[float]:
        """Time of one carried vector over that of an ordinary backward pass, repeat by repeat."""
        pairs = zip(self.seconds[way], self.seconds["backward"], strict=True)
        return [a / b / self.vectors for a, b in pairs]


def timed(action: Callable[[], object]) -> float:
    """Processor seconds of one call: on one thread, and not blurred by what else the machine does."""
    start = time.process_time()
    action()
    return time.process_time() - start


def batch_of(shape: tuple[int, ...]) -> torch.Tensor:
    """Images, or token numbers where there are two dimensions."""
    return torch.randn(shape) if len(shape) == 4 else torch.randint(0, 60, shape)


def measure(name: str, shape: tuple[int, ...], length: int, repeats: int, ways: tuple[str, ...] = WAYS) -> Measured:
    """All figures of one model."""
    torch.manual_seed(0)
    model = skipway.load_model(name).model.train()
    scene = set_up(model, batch_of(shape), None, "stream")
    with scene.run("plain") as plain, scene.run("marked") as live:
        units = len(scene.plan.units)
        longest, longer = min(length, units), length < units
        whole = plain.gradient()
        work: dict[str, Callable[[], object]] = {"backward": plain.gradient}
        for way in ways:
            work[way] = lambda together=way == "together": degrees(
                live, whole, longest, longer=longer, together=together
            )
        found = Measured(name, units, longest + 1 + longer)
        for action in work.values():
            action()
        for _ in range(repeats):
            for what, action in work.items():
                found.seconds.setdefault(what, []).append(timed(action))
    return found


def table(kept: list[Measured], deep: list[Measured], length: int, repeats: int) -> list[str]:
    """The results as lines of Markdown."""
    lines = [
        f"{machine(('torch', 'torchvision', 'transformers'))}; 1 thread. K = {length}, {repeats} repeats each, paired.",
        f"A carried vector in ordinary backward passes, median (spread); limit {LIMIT}.",
        "",
        "| model | units | vectors | backward, ms | together | one by one |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in kept:
        backward = statistics.median(one.seconds["backward"]) * 1000
        shown = (f"{statistics.median(r):.2f} ({max(r) - min(r):.2f})" for r in map(one.ratios, WAYS))
        lines.append(f"| {one.name} | {one.units} | {one.vectors} | {backward:.1f} | {' | '.join(shown)} |")
    lines += ["", "| depth | units | seconds | ms for each unit |", "| --- | --- | --- | --- |"]
    for one in deep:
        seconds = statistics.median(one.seconds[WAYS[0]])
        lines.append(f"| {one.name} | {one.units} | {seconds:.3f} | {1000 * seconds / one.units:.2f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="part of the names")
    parser.add_argument("--length", type=int, default=8, help="K")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path, help="Markdown file whose section is replaced")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = []
    for name, shape in MODELS.items():
        if options.only in name:
            kept.append(measure(name, shape, options.length, options.repeats))
            ratios = ", ".join(f"{w} {statistics.median(kept[-1].ratios(w)):.2f}" for w in WAYS)
            print(f"{name}: {ratios}", file=sys.stderr, flush=True)
    if not kept:
        parser.error(f"nothing to measure: no model's name holds {options.only!r}")
    deep = [measure(name, (2, 3, 32, 32), options.length, options.repeats, WAYS[:1]) for name in DEPTHS]
    lines = table(kept, deep, options.length, options.repeats)
    tell(lines, TITLE, options.results)
    return int(any(min(statistics.median(one.ratios(w)) for w in WAYS) > LIMIT for one in kept))


if __name__ == "__main__":
    raise SystemExit(main())
