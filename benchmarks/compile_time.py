"""Time to the first compiled step by depth: the whole model against its kinds of unit, one graph each.

    python benchmarks/compile_time.py [--depths N …] [--whole N …] [--limit SECONDS] [--repeats N] [--results FILE]

A step is one forward and one backward pass of a bottleneck net, ``resnet164@preact`` at the given depths, narrow and on
small images, so that compiling is what takes the time. Each figure is a process of its own with an empty cache, one
thread and one compile worker; time is that of the processor, of the process and of the C++ compilers that it started,
so that what else runs on the machine counts little. With kinds of unit the ratio of the last depth to the one before
is asked to be at most 1.5; compiling the whole model ends at the limit. A second table says whether compiled units pay
behind the first step: images a second, compiled / eager, in pairs.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from results_file import machine, tell

_ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / "src")]

import skipway  # noqa: E402  # after the path above

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.models import Net

TITLE: Final = "Time to compile (`benchmarks/compile_time.py`)"
MODEL: Final = "resnet164@preact"
LIMIT: Final = 1.5
BATCH: Final = 4
SIDE: Final = 8
WIDTH: Final = 4
PAYS: Final = "resnet56"
PAYS_BATCH: Final = 32


def processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


def step(net: Net, x: torch.Tensor) -> None:
    """One forward and backward pass."""
    net(x).square().mean().backward()
    net.zero_grad(set_to_none=True)


def first_step(depth: int, how: str) -> dict[str, Any]:
    """Seconds of the first step and of the third, and how many graphs went to the compiler."""
    from torch._inductor.compile_fx import compile_fx

    graphs = 0

    def counted(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return compile_fx(graph, inputs)

    torch.manual_seed(0)
    net = skipway.create_model(MODEL, depth=depth, width=WIDTH)
    x = torch.randn(BATCH, 3, SIDE, SIDE)
    if how == "units":
        net.compile_units(backend=counted)
    elif how == "model":
        net.compile(backend=counted, fullgraph=True)
    seconds = []
    for _ in range(3):
        start = processor_seconds()
        step(net, x)
        seconds.append(processor_seconds() - start)
    return {"first": seconds[0], "third": seconds[2], "graphs": graphs}


def in_process(depth: int, how: str, limit: float | None) -> dict[str, Any] | None:
    """`first_step` in a new process with an empty cache; None at the limit."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, __file__, "--one", str(depth), how]
        try:
            done = subprocess.run(  # noqa: S603  # our own command
                command, env=environment, capture_output=True, text=True, timeout=limit, check=True
            )
        except subprocess.TimeoutExpired:
            return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{depth} layers, {how}: {found}", file=sys.stderr, flush=True)
    return found


def by_depth(depths: Sequence[int], whole: Sequence[int], limit: float) -> tuple[list[str], float]:
    """The table, and the ratio of the last depth to the one before."""
    lines = [
        f"`{MODEL}` at {len(depths)} depths, width {WIDTH}, {BATCH} images of {SIDE}×{SIDE}, inductor. Seconds of the",
        "processor to the end of the first step, behind it the third step.",
        "",
        "| layers | kinds of unit: first step | graphs | third step | whole model: first step | graphs |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    units = {depth: in_process(depth, "units", None) for depth in depths}
    models = {depth: in_process(depth, "model", limit) for depth in whole}
    seconds = []
    for depth, found in units.items():
        assert found is not None
        seconds.append(found["first"])
        cells = f"{found['first']:.0f} | {found['graphs']} | {found['third']:.2f}"
        model = models.get(depth)
        if model is not None:
            cells += f" | {model['first']:.0f} | {model['graphs']}"
        else:
            cells += f" | {f'stopped after {limit:.0f} s' if depth in whole else 'not run'} | –"
        lines.append(f"| {depth} | {cells} |")
    ratio = seconds[-1] / seconds[-2] if len(seconds) > 1 else 1.0
    if len(seconds) > 1:
        lines += ["", f"{depths[-1]} / {depths[-2]} layers: {ratio:.2f} (asked: at most {LIMIT})."]
    return lines, ratio


def pays(repeats: int) -> list[str]:
    """Images a second, compiled / eager."""
    lines = [
        f"`{PAYS}`, {PAYS_BATCH} images of 32×32, forward and backward, {repeats} repeats in pairs.",
        "",
        "| layout | eager, images/s | kinds of unit, images/s | compiled / eager: median (least – most) |",
        "| --- | --- | --- | --- |",
    ]
    for layout, memory_format in (("NCHW", torch.contiguous_format), ("channels-last", torch.channels_last)):
        torch.manual_seed(0)
        eager = skipway.create_model(PAYS).to(memory_format=memory_format)  # type: ignore[call-overload]
        compiled = copy.deepcopy(eager)
        compiled.compile_units()
        x = torch.randn(PAYS_BATCH, 3, 32, 32).contiguous(memory_format=memory_format)
        pairs = []
        for _ in range(repeats + 2):
            taken = []
            for net in (eager, compiled):
                start = time.process_time()
                step(net, x)
                taken.append(time.process_time() - start)
            pairs.append(taken)
        ratios = [a / b for a, b in pairs[2:]]
        speeds = [PAYS_BATCH / statistics.median(pair[i] for pair in pairs[2:]) for i in (0, 1)]
        shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"
        lines.append(f"| {layout} | {speeds[0]:.0f} | {speeds[1]:.0f} | {shown} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--depths", nargs="+", type=int, default=(20, 56, 110, 1001))
    parser.add_argument("--whole", nargs="*", type=int, default=(20, 56))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of the clock for the whole model")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path, help="Markdown file whose section is replaced")
    parser.add_argument("--one", nargs=2, metavar=("DEPTH", "HOW"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        print(json.dumps(first_step(int(options.one[0]), options.one[1])))
        return 0
    table, ratio = by_depth(options.depths, options.whole, options.limit)
    lines = [f"{machine(('torch',))}. 1 thread.", "", *table, "", *pays(options.repeats)]
    tell(lines, TITLE, options.results)
    return int(ratio > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
