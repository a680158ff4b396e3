"""What our training costs beside the arithmetic: ResNet-56, images of CIFAR's shape, batch 128.

    python benchmarks/train_overhead.py [--repeats N] [--steps N] [--threads N] [--results FILE]

Four programs, one after the other in every repeat, on random images:

convolutions   the net's convolutions alone in bf16, forward and both gradients: no training can be faster
bare           a net and a loop written by hand, as fast as we can: channels-last, bf16 autocast, fused SGD, one batch
               that stays; no data, no logging
skipway        `skipway train resnet56` with everything a user gets: data augmented for each image, metrics, progress
               display, checks of the loss
usual          the same net as most people train it: DataLoader with two workers, transforms on PIL images, float32,
               `loss.item()` each step

Ratios are formed within a repeat; shown are the median and the spread of the ratios. Time is wall-clock for each step,
warm-up left out.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from results_file import machine, tell
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision.transforms import v2

from skipway.cli.training_display import TrainingDisplay
from skipway.data.image_tensors import open_images
from skipway.data.images import Images, ImageSplits
from skipway.models import create_model
from skipway.spec import DataSpec, RunSpec
from skipway.train.fit import run_spec
from skipway.train.plan import plan_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH: Final = 128
WARM: Final = 5
MODEL: Final = "resnet56"
TITLE: Final = "Training beside its own arithmetic (`benchmarks/train_overhead.py`)"
LIMITS: Final = {"skipway / bare": 0.95, "skipway / usual": 1.8, "bare / convolutions": 0.58}


class Unit(nn.Module):
    """ReLU(x + BN(conv(ReLU(BN(conv(x)))))), option A."""

    def __init__(self, reads: int, writes: int) -> None:
        super().__init__()
        self.stride = writes // reads
        self.conv1 = nn.Conv2d(reads, writes, 3, self.stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(writes)
        self.conv2 = nn.Conv2d(writes, writes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(writes)
        self.more = writes - reads

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(y.add_(x), inplace=True)


class ByHand(nn.Module):
    """ResNet-56 for CIFAR, written by hand."""

    def __init__(self, depth: int = 56, classes: int = 10) -> None:
        super().__init__()
        n = (depth - 2) // 6
        widths = [16, *[16] * n, *[32] * n, *[64] * n]
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.units = nn.Sequential(*(Unit(a, b) for a, b in itertools.pairwise(widths)))
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.units(self.stem(x)).mean((2, 3)))


def per_step(step: Any, steps: int) -> float:
    """Seconds of a step, warm-up left out."""
    for _ in range(WARM):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def convolutions(steps: int) -> float:
    """Seconds in which the net's convolutions alone are computed, forward and backward, in bf16."""
    net = ByHand().to(memory_format=torch.channels_last).bfloat16()
    calls: list[tuple[Tensor, Tensor, Tensor, int, bool]] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        x = torch.randn_like(inputs[0])
        calls.append((x, module.weight.detach(), torch.randn_like(output), module.stride[0], len(calls) > 0))

    hooks = [m.register_forward_hook(keep) for m in net.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        net(torch.randn(BATCH, 3, 32, 32).bfloat16().to(memory_format=torch.channels_last))
    for hook in hooks:
        hook.remove()

    @torch.no_grad()
    def step() -> None:
        for x, weight, grad, stride, needs_input in calls:
            torch.conv2d(x, weight, None, stride, 1)
            torch.ops.aten.convolution_backward(
                grad, x, weight, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, [needs_input, True, False]
            )

    return per_step(step, steps)


def bare(steps: int) -> float:
    """Seconds of a step of the loop written by hand."""
    torch.manual_seed(0)
    net = ByHand().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    x = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (BATCH,))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(x)
        loss = F.cross_entropy(logits.float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return per_step(step, steps)


class Clock(TrainingDisplay):
    """The display of the command line, on a terminal that nobody sees; remembers when lines came."""

    def __init__(self, folder: Path) -> None:
        console = Console(file=Path(os.devnull).open("w", encoding="utf-8"), force_terminal=True)  # noqa: SIM115  # as long as the process
        super().__init__(folder, console)
        self.times: dict[int, float] = {}

    def measured(self, line: dict[str, Any]) -> None:
        """Show the line, and note the time."""
        super().measured(line)
        if "loss" in line:
            self.times[line["step"]] = time.perf_counter()


def skipway(steps: int, pixels: Tensor, labels: Tensor) -> float:
    """Seconds of a step of `skipway train`."""
    spec = DataSpec(name="random", augment="crop-flip")
    splits = ImageSplits(
        train=Images(pixels, labels), test=Images(pixels[:BATCH], labels[:BATCH]), num_classes=10, classes=(), note=""
    )
    data = open_images(splits, spec, auto="crop-flip", device=torch.device("cpu"))
    recipe = plan_recipe("quick", spec, steps=WARM + steps, batch_size=BATCH)
    run = RunSpec(model=MODEL, data=spec, recipe=recipe, log_every=WARM, inspect=False, checkpoint_every=0)
    with tempfile.TemporaryDirectory() as folder, Clock(Path(folder)) as clock:
        run_spec(run, Path(folder) / "run", data=data, listener=clock)
    return (clock.times[WARM + steps] - clock.times[WARM]) / steps


class Pictures(TorchDataset[tuple[Tensor, int]]):
    """Random images through the usual transforms, as torchvision's CIFAR10 gives them."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels.numpy(), labels.tolist()
        self.transform = v2.Compose(
            [
                v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)),
            ]
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def usual(steps: int, pixels: Tensor, labels: Tensor) -> float:
    """Seconds of a step of the loop that most people write."""
    torch.manual_seed(0)
    net = ByHand()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Pictures(pixels, labels), batch_size=BATCH, shuffle=True, num_workers=2)
    batches: Iterator[tuple[Tensor, Tensor]] = iter(loader)

    def step() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    return per_step(step, steps)


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; exit code 1 if a median is below its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, help="Markdown file whose section is to be replaced")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    steps = WARM * max(1, options.steps // WARM)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50_000, 32, 32, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (50_000,), generator=generator)
    assert sum(p.numel() for p in ByHand().parameters()) == sum(p.numel() for p in create_model(MODEL).parameters())
    rows: list[dict[str, float]] = []
    for repeat in range(options.repeats):
        rows.append(
            {
                "convolutions": convolutions(steps), "bare": bare(steps), "skipway": skipway(steps, pixels, labels),
                "usual": usual(steps, pixels, labels),
            }
        )  # fmt: skip
        shown = ", ".join(f"{name} {BATCH / seconds:.0f}" for name, seconds in rows[-1].items())
        print(f"repeat {repeat}: images/s: {shown}", file=sys.stderr, flush=True)
    lines = table(rows, options.threads)
    tell(lines, TITLE, options.results)
    return int(any(statistics.median(ratios(rows, name)) < limit for name, limit in LIMITS.items()))


def ratios(rows: list[dict[str, float]], name: str) -> list[float]:
    """Speed of the first over that of the second, repeat by repeat."""
    first, second = name.split(" / ")
    return [row[second] / row[first] for row in rows]


def table(rows: list[dict[str, float]], threads: int) -> list[str]:
    """The results as lines of Markdown."""
    versions = machine(("torch", "torchvision", "lightning-fabric"))
    lines = [
        f"{versions}; {threads} threads. {MODEL}, batch {BATCH}, {len(rows)} repeats, paired.",
        "",
        "| program | images/s, median | least – most |",
        "| --- | --- | --- |",
    ]
    for name in rows[0]:
        speeds = [BATCH / row[name] for row in rows]
        lines.append(f"| {name} | {statistics.median(speeds):.0f} | {min(speeds):.0f} – {max(speeds):.0f} |")
    lines += ["", "| speed ratio | median | least – most | asked |", "| --- | --- | --- | --- |"]
    for name, limit in LIMITS.items():
        found = ratios(rows, name)
        lines.append(f"| {name} | {statistics.median(found):.3f} | {min(found):.3f} – {max(found):.3f} | {limit} |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
