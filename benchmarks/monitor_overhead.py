"""What a monitor costs in training: ResNet-56 and a 12-layer GPT, measured every 25 steps and at every step.

    python benchmarks/monitor_overhead.py [--repeats N] [--steps N] [--threads N] [--only NAME] [--results FILE]

Two trainings with batch sizes that people use, on random data that stay, as skipway trains them: ResNet-56 on images of
CIFAR's shape, batch 128, channels-last, bf16 autocast, SGD with momentum; GPT with 12 layers of width 256, context 128,
batch 16, bf16 autocast, AdamW. Both measure the first 16 samples, the default, and update/weight.

One model trains on in one process. Each repeat runs a block of steps without a monitor and one with it, in alternating
order; the ratio of their times is formed within the repeat. Shown are the median and the spread of the ratios. Finding
the units (two more forward runs, once in a training) is left out of the blocks and shown in the last column.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from results_file import machine, tell
from torch import Tensor, nn
from torch.nn import functional as F

from skipway.diagnostics.monitor import Monitor
from skipway.models import create_model

if TYPE_CHECKING:
    from collections.abc import Callable

TITLE: Final = "Cost of a monitor in training (`benchmarks/monitor_overhead.py`)"
LIMITS: Final = {1: 0.15, 25: 0.03}


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A GPT written by hand."""

    def __init__(
        self, layers: int = 12, width: int = 256, heads: int = 8, context: int = 128, words: int = 256
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


@dataclass
class Case:
    """A training: one step, the model, its optimizer, and what is measured of it."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: tuple[Tensor, Tensor]
    plain_sec: list[float] = field(default_factory=list)
    ratios: dict[int, list[float]] = field(default_factory=dict)
    find_sec: float = 0.0

    def step(self) -> None:
        x, y = self.batch
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(self.model(x).flatten(0, -2), y.flatten())
        loss.backward()
        self.optimizer.step()


def resnet() -> Case:
    model = create_model("resnet56").to(memory_format=torch.channels_last)
    x = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    return Case("ResNet-56, batch 128", model, optimizer, (x, torch.randint(0, 10, (128,))))


def gpt() -> Case:
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 256, (16, 129))
    return Case("GPT, 12 layers, batch 16 × 128", model, optimizer, (ids[:, :-1], ids[:, 1:]))


CASES: Final[dict[str, Callable[[], Case]]] = {"resnet": resnet, "gpt": gpt}


def block(case: Case, steps: int, monitor: Monitor | None = None) -> float:
    """Seconds a step, of a block of steps."""
    start = time.perf_counter()
    for _ in range(steps):
        case.step()
        if monitor is not None:
            monitor.step()
    return (time.perf_counter() - start) / steps


def measured(case: Case, every: int, steps: int) -> tuple[float, float]:
    """Seconds of the first step, in which the units are found, and seconds a step of the block behind it."""
    with Monitor(case.model, every=every, optimizer=case.optimizer, log=lambda *_: None) as monitor:
        first = block(case, 1, monitor)
        others = block(case, steps, monitor)
        assert monitor.active
        assert len(monitor.history) == 1 + steps // every
        assert all(u.grad_stream and u.branch_share and u.update_over_weight for r in monitor.history for u in r.units)
    return first, others


def measure(case: Case, repeats: int, steps: int) -> None:
    """Fill in the figures of a case."""
    block(case, 3)
    finding = []
    for every in LIMITS:
        length = steps if every == 1 else every
        case.ratios[every] = []
        for repeat in range(repeats):
            plain = block(case, length) if repeat % 2 else 0.0
            first, with_it = measured(case, every, length)
            plain = plain or block(case, length)
            case.plain_sec.append(plain)
            case.ratios[every].append(with_it / plain - 1)
            finding.append(first - with_it if every == 1 else first - plain)
    case.find_sec = statistics.median(finding)


def table(cases: list[Case], repeats: int, steps: int) -> list[str]:
    """The results as lines of Markdown."""
    lines = [
        f"{machine(('torch',))}; {torch.get_num_threads()} thread(s).",
        f"{repeats} repeats, blocks of {steps} steps (25 where one in 25 is measured), paired in one run.",
        "",
        "| training | seconds a step | measured | overhead, median | from, to | limit | finding the units, once |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases:
        for every, ratios in case.ratios.items():
            lines.append(
                f"| {case.name} | {statistics.median(case.plain_sec):.3f} | every {every} | "
                f"{100 * statistics.median(ratios):+.1f} % | {100 * min(ratios):+.1f} to {100 * max(ratios):+.1f} % | "
                f"{100 * LIMITS[every]:.0f} % | {case.find_sec:.2f} s |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=sorted(CASES))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    cases = []
    for name in [options.only] if options.only else CASES:
        case = CASES[name]()
        measure(case, options.repeats, options.steps)
        cases.append(case)
    lines = table(cases, options.repeats, options.steps)
    tell(lines, TITLE, options.results)


if __name__ == "__main__":
    main()
