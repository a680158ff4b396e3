"""What an inspection costs, on the public models: time against one forward and backward, memory, runs of the model.

    python benchmarks/inspect_cost.py [--only PATTERN] [--repeats N] [--variant NAME] [--no-memory] [--no-torchlens]
        [--results FILE]

One thread. For every model, each repeat times, one after the other: forward + backward of a fixed random projection of
the outputs (gradients of all parameters), `structure_only` without proofs, the same with proofs, and the default
profile. A ratio is formed within a repeat, a model counts with the median of its ratios, and the table shows median and
90th percentile over the models, with the spread (median over the models of largest minus smallest ratio of a model).

Memory: the largest sum of bytes that PyTorch's CPU allocator held above what the model holds at rest (parameters and
buffers), from the profiler's allocation records, so that neither the interpreter nor the libraries blur it. The ratio
compares that of an inspection with that of forward + backward; the second column adds the bytes at rest on both sides.

TorchLens: full capture of every operation's output (its default) against `structure_only` with proofs, on ten models.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler reports its every start on standard error

import torch  # reads the line above
from results_file import machine, tell
from torch import nn  # as above

_ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / "tests"), str(_ROOT / "src")]

from skipway.diagnostics.inspect import inspect  # noqa: E402  # after the path above
from skipway.diagnostics.measure import projection_loss  # noqa: E402  # the same loss on both sides
from skipway.trace.batch import call_arguments  # noqa: E402  # as above
from zoo.models import ZOO, ZooModel, select  # noqa: E402  # the models live with the tests

if TYPE_CHECKING:
    from collections.abc import Callable

TITLE: Final = "Cost of an inspection (`benchmarks/inspect_cost.py`)"
PACKAGES: Final = ("torch", "torchvision", "timm", "transformers")
TORCHLENS_MODELS: Final = (
    "timm/resnet18", "timm/resnet50", "timm/mobilenetv2_100", "timm/convnext_atto", "timm/vit_tiny_patch16_224",
    "timm/swin_tiny_patch4_window7_224", "tv/densenet121", "hf/bert", "hf/gpt2", "hf/llama",
)  # fmt: skip
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "structure, no proofs": {"structure_only": True, "profile": "fast"},
    "structure, proofs": {"structure_only": True},
    "default profile": {},
}
LIMITS: Final = {"structure, no proofs": 0.6, "default profile": 3.0}
BASE: Final = "forward + backward"


@dataclass
class Measured:
    """Figures of one model: seconds by what was done (one per repeat), peak bytes likewise, runs of the model."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    at_rest: int = 0
    runs: dict[str, int] = field(default_factory=dict)

    def ratios(self, variant: str) -> list[float]:
        """Time of a variant over that of forward + backward, repeat by repeat."""
        return [a / b for a, b in zip(self.seconds[variant], self.seconds[BASE], strict=True)]


def forward_backward(model: nn.Module, batch: Any) -> None:
    """One forward run and the gradients of a random projection of its outputs with respect to all parameters."""
    args, kwargs = call_arguments(batch)
    loss = projection_loss(model(*args, **kwargs))
    torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)


def timed(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def peak_bytes(action: Callable[[], object]) -> int:
    """The largest sum of bytes held at once by what `action` allocates on the CPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        action()
    held = most = 0
    for event in sorted(
        (e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()
    ):
        held += event.nbytes()
        most = max(most, held)
    return most


def actions(model: nn.Module, batch: Any, variants: tuple[str, ...]) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    found: dict[str, Callable[[], object]] = {BASE: lambda: forward_backward(model, batch)}
    for variant in variants:
        found[variant] = lambda options=VARIANTS[variant]: inspect(model, batch, **options)
    return found


def measure(entry: ZooModel, variants: tuple[str, ...], *, repeats: int, memory: bool) -> Measured | str:
    """All figures of one model, or why there are none."""
    model, batch = entry.make()
    found = Measured(entry.name)
    work = actions(model, batch, variants)
    try:
        for _ in range(2):  # caches, lazily made tables, kernels chosen at first use; some keep a graph that ends here
            for action in work.values():
                action()
    except RuntimeError as error:
        return f"{entry.name}: forward + backward twice fails by itself: {str(error).partition('.')[0][:90]}"
    for _ in range(repeats):
        for name, action in work.items():
            found.seconds.setdefault(name, []).append(timed(action))
    if memory:
        found.peaks = {name: peak_bytes(action) for name, action in work.items()}
        found.at_rest = sum(t.nbytes for t in {*model.parameters(), *model.buffers()})
    for variant in variants:
        found.runs[variant] = sum(inspect(model, batch, **VARIANTS[variant]).runs.values())
    return found


def torchlens_ratios(repeats: int) -> dict[str, tuple[list[float], list[float]]]:
    """For ten models: time of TorchLens' full capture over ours without and with proofs, repeat by repeat."""
    import torchlens

    found = {}
    for name in TORCHLENS_MODELS:
        model, batch = ZOO[name].make()
        args, kwargs = call_arguments(batch)
        work = actions(model, batch, tuple(VARIANTS))

        def capture(model: nn.Module = model, args: tuple[Any, ...] = args, kwargs: dict[str, Any] = kwargs) -> object:
            return torchlens.trace(model, list(args), kwargs)

        bare, proved = work["structure, no proofs"], work["structure, proofs"]
        for action in (capture, bare, proved):
            action()
        found[name] = ([], [])
        for _ in range(repeats):
            theirs = timed(capture)
            found[name][0].append(theirs / timed(bare))
            found[name][1].append(theirs / timed(proved))
    return found


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _p90(values: list[float]) -> float:
    return percentile(values, 0.9)


def table(kept: list[Measured], skipped: list[str], variants: tuple[str, ...], repeats: int) -> list[str]:
    """The results as lines of Markdown."""
    base = [statistics.median(m.seconds[BASE]) for m in kept]
    lines = [
        f"{machine(PACKAGES)}; 1 thread. {len(kept)} models, {repeats} repeats each, paired in one run;",
        f"forward + backward takes {statistics.median(base) * 1000:.0f} ms at the median, {sum(base):.1f} s in all.",
        "",
        "| time / (forward + backward) | median | p90 | largest | spread within a model | limit at the median |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for variant in variants:
        ratios = [statistics.median(m.ratios(variant)) for m in kept]
        spread = statistics.median([max(m.ratios(variant)) - min(m.ratios(variant)) for m in kept])
        worst = max(kept, key=lambda m: statistics.median(m.ratios(variant)))
        lines.append(
            f"| {variant} | {statistics.median(ratios):.2f} | {percentile(ratios, 0.9):.2f} | {max(ratios):.2f} "
            f"({worst.name}) | {spread:.2f} | {LIMITS.get(variant, '–')} |"
        )
    if all(m.peaks for m in kept):
        lines += [
            "",
            "| peak memory / that of forward + backward | median | p90 | with parameters: median | p90 |",
            "| --- | --- | --- | --- | --- |",
        ]
        for variant in variants:
            above = [m.peaks[variant] / m.peaks[BASE] for m in kept]
            whole = [(m.peaks[variant] + m.at_rest) / (m.peaks[BASE] + m.at_rest) for m in kept]
            figures = [
                statistics.median(above),
                percentile(above, 0.9),
                statistics.median(whole),
                percentile(whole, 0.9),
            ]
            lines.append(f"| {variant} | " + " | ".join(f"{f:.2f}" for f in figures) + " |")
    lines += ["", "| forward runs of the model | median | most |", "| --- | --- | --- |"]
    for variant in variants:
        runs = [m.runs[variant] for m in kept]
        lines.append(f"| {variant} | {statistics.median(runs):g} | {max(runs)} |")
    return lines + [f"\nNot measured: {reason}" for reason in skipped]


def torchlens_table(found: dict[str, tuple[list[float], list[float]]]) -> list[str]:
    """The comparison as lines of Markdown."""
    version = importlib.metadata.version("torchlens")
    lines = [
        "",
        f"| TorchLens {version} full capture / skipway | structure, no proofs | structure, proofs | spread |",
        "| --- | --- | --- | --- |",
    ]
    for name, (bare, proved) in found.items():
        spread = max(proved) - min(proved)
        lines.append(f"| {name} | {statistics.median(bare):.1f} | {statistics.median(proved):.1f} | {spread:.1f} |")
    medians = [statistics.median([statistics.median(pair[k]) for pair in found.values()]) for k in (0, 1)]
    return [*lines, f"| median of {len(found)} | {medians[0]:.1f} | {medians[1]:.1f} | |"]


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; exit code 1 if a median is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="part of a name, or a pattern with * and ?")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--variant", choices=VARIANTS, action="append", help="only this; may be repeated")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-torchlens", action="store_true")
    parser.add_argument("--results", type=Path, help="Markdown file whose section is to be replaced")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.filterwarnings("ignore")
    variants = tuple(options.variant or VARIANTS)
    kept: list[Measured] = []
    skipped: list[str] = []
    for entry in select(options.only):
        found = measure(entry, variants, repeats=options.repeats, memory=not options.no_memory)
        if isinstance(found, str):
            skipped.append(found)
            continue
        kept.append(found)
        shown = ", ".join(f"{v} {statistics.median(found.ratios(v)):.2f}" for v in variants)
        print(f"{entry.name}: {shown}", file=sys.stderr, flush=True)
    if not kept:
        parser.error(f"nothing to measure: no model matches {options.only!r}, or none can be run backward")
    lines = table(kept, skipped, variants, options.repeats)
    if not options.no_torchlens:
        lines += torchlens_table(torchlens_ratios(options.repeats))
    tell(lines, TITLE, options.results)
    over = [
        v
        for v, limit in LIMITS.items()
        if v in variants and statistics.median(statistics.median(m.ratios(v)) for m in kept) > limit
    ]
    return int(bool(over))


if __name__ == "__main__":
    raise SystemExit(main())
