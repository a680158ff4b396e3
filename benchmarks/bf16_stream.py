"""What a stream in bf16 costs in accuracy, by depth: one backward pass under bf16 autocast against float32.

    python benchmarks/bf16_stream.py [--models NAME …] [--reversible NAME …] [--batch N] [--size P] [--seeds N]
        [--results FILE]

For each net three passes with the same weights and images: float32; bf16 autocast as `skipway train` does it, where
the stem's output, and so the whole stream of a convolutional net, is bf16; and bf16 autocast with the stream in
float32 (`residual_in_fp32`), for twice the memory of the stream. Shown are the relative error of the logits, and the
cosine between the gradients of each convolution's weights and those of float32, at the median over convolutions.

For nets that compute their activations back (memory="reversible"), under bf16 autocast: how far the states before runs
of units come back from where they were, and all gradients from those of memory="keep", both relative.

bf16 is a matter of arithmetic here, not of speed: a processor without it computes the same slowly.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from results_file import machine, tell
from torch import Tensor, nn
from torch.nn import functional as F

import skipway

TITLE: Final = "A stream in bf16 against one in float32 (`benchmarks/bf16_stream.py`)"
MODELS: Final = ("resnet20@preact", "resnet56@preact", "resnet110@preact", "resnet218@preact", "resnet434@preact")
REVERSIBLE: Final = ("resnet56@revnet", "resnet110@revnet", "resnet218@revnet")


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Logits, and the gradient of every convolution's weights."""

    logits: Tensor
    gradients: list[Tensor]

    @classmethod
    def of(cls, net: nn.Module, x: Tensor, y: Tensor, *, bf16: bool) -> Pass:
        """Run forward and backward."""
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = net(x)
        F.cross_entropy(logits.float(), y).backward()
        weights = [m.weight for m in net.modules() if isinstance(m, nn.Conv2d)]
        return cls(logits=logits.detach().float(), gradients=[w.grad.clone() for w in weights if w.grad is not None])

    def error(self, exact: Pass) -> float:
        """Of the logits, relative."""
        return float((self.logits - exact.logits).norm() / exact.logits.norm())

    def cosine(self, exact: Pass) -> float:
        """Between the gradients, at the median over convolutions."""
        pairs = zip(self.gradients, exact.gradients, strict=True)
        return statistics.median(float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0)) for a, b in pairs)


def measure(name: str, *, batch: int, size: int, seed: int) -> dict[str, float]:
    """Both errors and both cosines of one net."""
    torch.manual_seed(seed)
    net = skipway.create_model(name, image_size=size).train()
    x, y = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
    exact, bf16 = Pass.of(net, x, y, bf16=False), Pass.of(net, x, y, bf16=True)
    net.stack.set_residual_in_fp32()
    kept = Pass.of(net, x, y, bf16=True)
    return {
        "error": bf16.error(exact), "error, float32 stream": kept.error(exact),
        "cosine": bf16.cosine(exact), "cosine, float32 stream": kept.cosine(exact),
    }  # fmt: skip


def measure_back(name: str, *, batch: int, size: int, seed: int) -> dict[str, float]:
    """Deviations of states and gradients of one reversible net, with both formats of the stream."""
    found: dict[str, float] = {}
    for wide in (False, True):
        gradients = []
        for memory in ("keep", "reversible"):
            torch.manual_seed(seed)
            net = skipway.create_model(name, image_size=size, memory=memory, residual_in_fp32=wide).train()
            net.stack.drift.silent = True
            x, y = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
            with torch.autocast("cpu", torch.bfloat16):
                logits = net(x)
            F.cross_entropy(logits.float(), y).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
        found[f"state, {wide}"] = net.stack.drift.largest
        found[f"gradients, {wide}"] = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
    return found


def spread(values: list[float], digits: str) -> str:
    """Median (least – most)."""
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} – {max(values):{digits}})"


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--reversible", nargs="*", default=list(REVERSIBLE))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=16, help="pixels")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="Markdown file whose section is to be replaced")
    options = parser.parse_args(argv)
    setting = f"Batch {options.batch}, {options.size} pixels, at initialisation, {options.seeds} seeds"
    lines = [
        f"{machine(('torch',))}. {setting}: median (least – most).",
        "",
        "| net | logits off, bf16 stream | float32 stream | gradient cosine, bf16 stream | float32 stream |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in options.models:
        found = [measure(name, batch=options.batch, size=options.size, seed=seed) for seed in range(options.seeds)]
        keys = ("error", "error, float32 stream", "cosine", "cosine, float32 stream")
        cells = [spread([one[key] for one in found], ".3f") for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    if options.reversible:
        lines += [
            "",
            "| reversible | states off, bf16 stream | float32 stream | gradients off, bf16 stream | float32 stream |",
            "| --- | --- | --- | --- | --- |",
        ]
    for name in options.reversible:
        back = [measure_back(name, batch=options.batch, size=options.size, seed=seed) for seed in range(options.seeds)]
        keys = ("state, False", "state, True", "gradients, False", "gradients, True")
        lines.append(f"| {name} | {' | '.join(spread([one[key] for one in back], '.2g') for key in keys)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    tell(lines, TITLE, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
