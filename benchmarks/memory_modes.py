"""What the memory modes save and cost: bytes and time of a training step against ``memory="keep"`` in one run.

    python benchmarks/memory_modes.py [--models NAME …] [--batch N] [--size P] [--repeats N] [--results FILE]

One thread on the processor, or a CUDA device (``--device cuda``). Each repeat makes one forward and backward pass in
every mode, one after the other, and a ratio is formed within a repeat; a mode counts with the median of its ratios, the
spread is the largest minus the smallest. On the processor the time is that of the process, and the bytes are those that
autograd keeps, worked out from 2 and 4 samples as ``skipway show`` does it; on CUDA the time is the device's, and the
bytes are the peak that PyTorch allocated beyond what was there before. The limits are those of a thousand layers,
``--models resnet1001@preact --batch 128``: recompute at most 0.55 of the bytes at 1.10 of the time, checkpoint at most
0.12 of the bytes at 1.05 of the time of a step with one more forward pass.
"""

from __future__ import annotations

import argparse
import copy
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
from skipway.models.memory import activation_bytes  # noqa: E402  # as above
from skipway.report.numbers import bytes_text  # noqa: E402  # as above

if TYPE_CHECKING:
    from typing_extensions import Self

    from skipway.models import Net

TITLE: Final = "Memory modes (`benchmarks/memory_modes.py`)"
MODELS: Final = ("resnet110@preact", "resnet164@preact", "resnet110", "gpt_nano", "resnet110@revnet")
LIMITS: Final = {"recompute": (0.55, 1.10), "checkpoint": (0.12, 1.05)}
LIMITED: Final = "resnet1001@preact"


@dataclass
class Measured:
    """Of one model: bytes by mode, seconds by mode and of a forward pass, one per repeat."""

    name: str
    nbytes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def bytes_ratio(self, mode: str) -> float:
        """Of keep's."""
        return self.nbytes[mode] / self.nbytes["keep"]

    def time_ratios(self, mode: str) -> list[float]:
        """Of keep's time, for checkpoint and reversible with one more forward pass, repeat by repeat."""
        keep, forward, mine = self.seconds["keep"], self.seconds["forward"], self.seconds[mode]
        extra = forward if mode in ("checkpoint", "reversible") else [0.0] * len(forward)
        return [m / (k + e) for m, k, e in zip(mine, keep, extra, strict=True)]


class Clock:
    """Seconds of what runs inside: of the process on the processor, else of the device's clock."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def __enter__(self) -> Self:
        self.start = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._now() - self.start

    def _now(self) -> float:
        if not self.cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def step(net: Net, x: torch.Tensor) -> None:
    """One forward and backward pass."""
    net(x).float().square().mean().backward()
    net.zero_grad(set_to_none=True)


def measure(name: str, device: torch.device, batch: int, size: int | None, repeats: int) -> Measured:
    """All figures of one model."""
    torch.manual_seed(0)
    net = skipway.create_model(name, image_size=size) if size else skipway.create_model(name)
    x = net.dummy_input(batch).to(device)
    net.to(device)
    nets = {mode: copy.deepcopy(net) for mode in net.stack.memory_modes}
    for mode, one in nets.items():
        one.set_memory(mode)
    found = Measured(name)
    if device.type == "cuda":
        for mode, one in nets.items():
            step(one, x)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            step(one, x)
            found.nbytes[mode] = torch.cuda.max_memory_allocated(device) - before
    else:
        found.nbytes = {mode: need.of(batch) for mode, need in activation_bytes(net, net.stack, x).items()}
        for one in nets.values():
            step(one, x)
    for _ in range(repeats):
        for mode, one in nets.items():
            with Clock(device) as clock:
                step(one, x)
            found.seconds.setdefault(mode, []).append(clock.seconds)
        with Clock(device) as clock, torch.no_grad():
            nets["keep"](x)
        found.seconds.setdefault("forward", []).append(clock.seconds)
    return found


def table(kept: list[Measured], batch: int, repeats: int, device: torch.device) -> list[str]:
    """The results as lines of Markdown."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "1 thread"
    lines = [
        f"{machine(('torch',))}; {where}. Batch {batch}, float32, {repeats} repeats each, paired.",
        "Time in steps that keep everything, for the last two in steps with one more forward pass; median (spread).",
        "",
        "| model | mode | bytes | of keep | time |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in kept:
        for mode in one.nbytes:
            times = one.time_ratios(mode)
            shown = "1" if mode == "keep" else f"{statistics.median(times):.2f} ({max(times) - min(times):.2f})"
            size = bytes_text(one.nbytes[mode])
            lines.append(f"| {one.name} | {mode} | {size} | {one.bytes_ratio(mode):.3f} | {shown} |")
    return lines


def missed(one: Measured) -> list[str]:
    """Modes that are above their limits, which are those of one model."""
    if one.name != LIMITED:
        return []
    return [
        mode
        for mode, (size, seconds) in LIMITS.items()
        if one.bytes_ratio(mode) > size or statistics.median(one.time_ratios(mode)) > seconds
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, help="side of the images in pixels; default: the model's")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, help="Markdown file whose section is replaced")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    kept = []
    for name in options.models:
        kept.append(measure(name, device, options.batch, options.size, options.repeats))
        saving = list(kept[-1].nbytes)[1:]
        ratios = ", ".join(f"{mode} {statistics.median(kept[-1].time_ratios(mode)):.2f}" for mode in saving)
        print(f"{name}: {ratios}", file=sys.stderr, flush=True)
    lines = table(kept, options.batch, options.repeats, device)
    tell(lines, TITLE, options.results)
    return int(any(missed(one) for one in kept))


if __name__ == "__main__":
    raise SystemExit(main())
