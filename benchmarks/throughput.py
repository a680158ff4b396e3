"""Training throughput of our nets beside torchvision's and timm's of equal architecture, all in one run.

    python benchmarks/throughput.py [--models NAME …] [--repeats N] [--steps N] [--threads N] [--device cuda]
                                    [--results FILE]

A step is forward pass, loss, backward pass and optimiser on one batch of random images that stays; no data, no logging
(those are in ``train_overhead.py``). Three ways to take it:

skipway    our net as `skipway train` runs it: channels-last, bf16 autocast where the hardware has it, fused SGD
best       the peer's net with the same flags
defaults   the peer's net as its constructor gives it: float32, contiguous, SGD as PyTorch has it

The peers of the CIFAR nets are made of torchvision's and of timm's own `BasicBlock` and of option A; those of resnet50
are `torchvision.models.resnet50` and `timm.create_model("resnet50")`. The numbers of parameters are compared first. The
order of the programs turns with each repeat; ratios are formed within a repeat, and of five repeats the least and the
largest are an interval of 94 % of the median.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import timm
import torch
import torchvision
from results_file import machine, tell
from timm.models.resnet import BasicBlock as TimmBlock
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock as VisionBlock

import skipway
from skipway.spec import OptimizerSpec
from skipway.train.hardware import resolve_precision
from skipway.train.optimizer import build_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

TITLE: Final = "Training throughput (`benchmarks/throughput.py`)"
MODELS: Final = ("resnet20", "resnet56", "resnet110", "resnet50")
WARM: Final = 2
BEST: Final = 0.98
DEFAULTS: Final = {"resnet50": 1.6}
DEFAULTS_CIFAR: Final = 1.8


class OptionA(nn.Module):
    """Every second pixel, and zeros for the new channels."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))


class Cifar(nn.Module):
    """He et al. 2015's net for CIFAR of somebody's basic block."""

    def __init__(self, depth: int, block: Callable[..., nn.Module]) -> None:
        super().__init__()
        n = (depth - 2) // 6
        widths = [16, *[16] * n, *[32] * n, *[64] * n]
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.blocks = nn.Sequential(
            *(block(a, b, b // a, OptionA(b - a) if b > a else None) for a, b in itertools.pairwise(widths))
        )
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


def peers(name: str) -> dict[str, Callable[[], nn.Module]]:
    """Makers of the nets to compare with, by library."""
    if name == "resnet50":
        return {"torchvision": torchvision.models.resnet50, "timm": lambda: timm.create_model("resnet50")}
    depth = int(name.removeprefix("resnet"))
    return {"torchvision": lambda: Cifar(depth, VisionBlock), "timm": lambda: Cifar(depth, TimmBlock)}


class Program:
    """A net and its step."""

    def __init__(self, net: nn.Module, x: Tensor, y: Tensor, *, fast: bool, optimizer: torch.optim.Optimizer) -> None:
        self.net, self.y, self.optimizer = net.train(), y, optimizer
        self.x = x.to(memory_format=torch.channels_last) if fast else x
        self.bf16 = fast and resolve_precision("auto", x.device.type) == "bf16-mixed"

    def step(self) -> None:
        """Forward, loss, backward, optimiser."""
        with torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.bf16):
            logits = self.net(self.x)
        loss = F.cross_entropy(logits.float(), self.y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def seconds(self, steps: int) -> float:
        """Of a step, warm-up left out."""
        for _ in range(WARM):
            self.step()
        self._wait()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._wait()
        return (time.perf_counter() - start) / steps

    def _wait(self) -> None:
        if self.x.device.type == "cuda":
            torch.cuda.synchronize()


def programs(name: str, x: Tensor, y: Tensor) -> dict[str, Program]:
    """Ours first, then each peer's two."""
    torch.manual_seed(0)
    ours = skipway.create_model(name).to(x.device).to(memory_format=torch.channels_last)
    spec = OptimizerSpec(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
    found = {"skipway": Program(ours, x, y, fast=True, optimizer=build_optimizer(ours, spec))}
    for library, make in peers(name).items():
        for fast in (True, False):
            net = make().to(x.device)
            if sum(p.numel() for p in net.parameters()) != sum(p.numel() for p in ours.parameters()):
                raise AssertionError(f"{library}'s {name} has another number of parameters")
            net = net.to(memory_format=torch.channels_last) if fast else net
            sgd = torch.optim.SGD(
                net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True if fast else None
            )
            found[f"{library}, {'best' if fast else 'defaults'}"] = Program(net, x, y, fast=fast, optimizer=sgd)
    return found


def measure(name: str, *, batch: int, steps: int, repeats: int, device: torch.device) -> list[dict[str, float]]:
    """Seconds of a step by program, for each repeat."""
    size = 224 if name == "resnet50" else 32
    x = torch.randn(batch, 3, size, size, device=device)
    y = torch.randint(0, 10, (batch,), device=device)
    made = programs(name, x, y)
    rows = []
    for repeat in range(repeats):
        order = [*made][repeat % len(made) :] + [*made][: repeat % len(made)]
        row = {which: made[which].seconds(steps) for which in order}
        rows.append({which: row[which] for which in made})
        shown = ", ".join(f"{which} {batch / s:.0f}" for which, s in rows[-1].items())
        print(f"{name}, repeat {repeat}: images/s: {shown}", file=sys.stderr, flush=True)
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; exit code 1 if a median is below its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batch", type=int, default=128, help="of the CIFAR nets; resnet50 takes a quarter")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="timed of resnet20; deeper nets take fewer, at least 2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, help="Markdown file whose section is to be replaced")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    rows = {}
    for name in options.models:
        large = name == "resnet50"
        depth = 1 if large else int(name.removeprefix("resnet"))
        rows[name] = measure(
            name, batch=options.batch // 4 if large else options.batch, repeats=options.repeats, device=device,
            steps=2 if large else max(2, options.steps * 20 // depth),
        )  # fmt: skip
    lines, short_of = table(rows, options)
    tell(lines, TITLE, options.results)
    return int(short_of)


def table(rows: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> tuple[list[str], bool]:
    """The results as lines of Markdown, and whether a median is below its limit."""
    on_gpu = options.device != "cpu"
    where = torch.cuda.get_device_name() if on_gpu else f"{options.threads} threads"
    precision = resolve_precision("auto", torch.device(options.device).type)
    lines = [
        f"{machine(('torch', 'torchvision', 'timm'))}; {where}, {precision}. {options.repeats} repeats, paired.",
        "",
        "| net | beside | skipway, images/s | theirs | speed ratio, median [least, most] | asked |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    short_of = False
    for name, found in rows.items():
        batch = options.batch // 4 if name == "resnet50" else options.batch
        for which in found[0]:
            if which == "skipway":
                continue
            ratios = [row[which] / row["skipway"] for row in found]
            limit = BEST if "best" in which else DEFAULTS.get(name, DEFAULTS_CIFAR)
            median = statistics.median(ratios)
            short_of |= median < limit
            ours, theirs = (batch / statistics.median([row[k] for row in found]) for k in ("skipway", which))
            spread = f"{median:.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
            lines.append(f"| {name} | {which} | {ours:.0f} | {theirs:.0f} | {spread} | {limit} |")
    return lines, short_of


if __name__ == "__main__":
    raise SystemExit(main())
