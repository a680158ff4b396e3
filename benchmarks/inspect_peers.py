"""An inspection of a net of GPT-2's size beside what people use to look inside: TransformerLens, and forward hooks.

    pip install transformer_lens
    python benchmarks/inspect_peers.py [--tokens N] [--repeats N] [--threads N] [--results FILE]

The net is transformers' own GPT-2 of 124 M random weights. In every repeat, one after the other:

forward + backward   the net alone
hooks                every module's output kept by a forward hook, then a backward pass with a hook on each of them
TransformerLens      `run_with_cache` of its bridge around the same net: every activation, no gradients
structure            `skipway.inspect(structure_only=True)`: the residual units, each proved
default              `skipway.inspect`: also the signal both ways, and all rules

They do not give the same: hooks and caches hand over tensors, and what they mean is left to the reader. Ratios to
forward + backward are formed within a repeat; shown are median, least and most.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from results_file import machine, tell
from transformers import GPT2Config, GPT2LMHeadModel

import skipway

if TYPE_CHECKING:
    from collections.abc import Callable

TITLE: Final = "An inspection beside TransformerLens and hooks (`benchmarks/inspect_peers.py`)"


def alone(net: GPT2LMHeadModel, ids: torch.Tensor) -> None:
    """Forward and backward."""
    net(input_ids=ids).logits.square().mean().backward()
    net.zero_grad(set_to_none=True)


def hooks(net: GPT2LMHeadModel, ids: torch.Tensor) -> None:
    """Keep what every module gives, and the gradient of the loss with respect to it."""
    kept: dict[str, torch.Tensor] = {}
    grads: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: object, _inputs: object, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor) and first.requires_grad:
                kept[name] = first.detach()
                first.register_hook(lambda grad: grads.__setitem__(name, grad))

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in net.named_modules()]
    try:
        alone(net, ids)
    finally:
        for handle in handles:
            handle.remove()


def programs(net: GPT2LMHeadModel, ids: torch.Tensor) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    try:
        from transformer_lens.model_bridge import TransformerBridge
    except ImportError as error:
        raise SystemExit(f"TransformerLens is missing ({error}): pip install transformer_lens") from error
    with tempfile.TemporaryDirectory() as folder:  # it reads the configuration by name; nothing is downloaded so
        net.config.architectures = [type(net).__name__]
        net.config.save_pretrained(folder)
        bridge = TransformerBridge.boot_transformers(folder, hf_model=net, device="cpu")
    batch = {"input_ids": ids}
    return {
        "forward + backward": lambda: alone(net, ids),
        "hooks": lambda: hooks(net, ids),
        "TransformerLens": lambda: bridge.run_with_cache(ids),
        "structure": lambda: skipway.inspect(net, batch, structure_only=True),
        "default": lambda: skipway.inspect(net, batch),
    }


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, help="Markdown file whose section is to be replaced")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    net = GPT2LMHeadModel(GPT2Config()).train()
    ids = torch.randint(0, net.config.vocab_size, (1, options.tokens))
    made = programs(net, ids)
    for run in made.values():
        run()
    rows: list[dict[str, float]] = []
    for repeat in range(options.repeats):
        rows.append({})
        for name, run in made.items():
            start = time.perf_counter()
            run()
            rows[-1][name] = time.perf_counter() - start
        shown = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in rows[-1].items())
        print(f"repeat {repeat}: {shown}", file=sys.stderr, flush=True)
    lines = table(rows, options)
    tell(lines, TITLE, options.results)
    return 0


def table(rows: list[dict[str, float]], options: argparse.Namespace) -> list[str]:
    """The results as lines of Markdown."""
    packages = ("torch", "transformers", "transformer_lens")
    setting = f"1 sequence of {options.tokens} tokens, {options.repeats} repeats, paired"
    lines = [
        f"{machine(packages)}; {options.threads} thread(s). GPT-2 with 124 M random weights, {setting}.",
        "",
        "| program | seconds, median | of forward + backward, median (least – most) |",
        "| --- | --- | --- |",
    ]
    for name in rows[0]:
        ratios = [row[name] / row["forward + backward"] for row in rows]
        seconds = statistics.median(row[name] for row in rows)
        lines.append(
            f"| {name} | {seconds:.2f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f}) |"
        )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
