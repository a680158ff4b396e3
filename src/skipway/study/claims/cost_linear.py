"""Claim ``cost-linear``: what a net costs is proportional to its depth."""

from __future__ import annotations

import gc
import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from skipway.diagnostics.inspect import inspect
from skipway.models import create_model
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["DEPTHS", "Line", "fitted", "judged", "steadied", "step_seconds"]

# 9n + 2 layers of bottlenecks, n = 3, 7, 13, 27, 55, 111: each about twice the one before.
DEPTHS: Final = (29, 65, 119, 245, 497, 1001)
ALLOWED: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Line:
    """``cost = start + slope · depth``, fitted so that the relative residuals are least.

    Args:
        start: cost at depth 0.
        slope: cost of a layer.
        residuals: cost over the line, minus 1, by depth.
    """

    start: float
    slope: float
    residuals: tuple[float, ...]

    @property
    def worst(self) -> float:
        """Largest residual, by its size."""
        return max(map(abs, self.residuals))


def fitted(costs: Mapping[int, float]) -> Line:
    """A line through costs by depth."""
    depths, values = np.array(list(costs), dtype=float), np.array(list(costs.values()), dtype=float)
    matrix = np.stack([1 / values, depths / values], axis=1)
    start, slope = np.linalg.lstsq(matrix, np.ones(len(values)), rcond=None)[0]
    residuals = values / (start + slope * depths) - 1
    return Line(start=float(start), slope=float(slope), residuals=tuple(map(float, residuals)))


def step_seconds(nets: Mapping[int, nn.Module], batch: Tensor, rounds: int) -> dict[int, list[float]]:
    """Seconds of processor time of a training step, for each of some rounds in which every net takes its turn.

    Others may run on the machine. So a shallow net repeats its step until it takes as long as the deepest: a short
    step finds a calm moment where a long one finds none.
    """
    deepest = max(nets)
    taken: dict[int, list[float]] = {depth: [] for depth in nets}
    threads, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()  # what it looks at grows with all that was ever built
    try:
        for net in nets.values():
            _steps(net, batch, 1)
        for _ in range(rounds):
            for depth, net in nets.items():
                taken[depth].append(_steps(net, batch, max(1, deepest // depth)))
    finally:
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()
    return taken


def _steps(net: nn.Module, batch: Tensor, repeats: int) -> float:
    started = time.process_time()
    for _ in range(repeats):
        net(batch).square().mean().backward()
        net.zero_grad(set_to_none=True)
    return (time.process_time() - started) / repeats


def steadied(taken: Mapping[int, Sequence[float]]) -> tuple[dict[int, float], float]:
    """The median second by depth, when what slows a whole round down is taken out; and how much repeats differ.

    Args:
        taken: seconds of each round by depth.

    Returns:
        Seconds by depth, and the largest range of a depth over its median.
    """
    whole = [sum(one) for one in zip(*taken.values(), strict=True)]
    usual = statistics.median(whole)
    even = {d: [v * usual / w for v, w in zip(values, whole, strict=True)] for d, values in taken.items()}
    medians = {d: statistics.median(values) for d, values in even.items()}
    return medians, max((max(values) - min(values)) / medians[d] for d, values in even.items())


def judged(flops: Mapping[int, float], taken: Mapping[int, Sequence[float]]) -> Judgement:
    """By the residuals of a line through each.

    Args:
        flops: of a forward pass, by depth.
        taken: seconds of a training step in each round, by depth.
    """
    seconds, spread = steadied(taken)
    lines = {"operations": fitted(flops), "seconds": fitted(seconds)}
    fits = {name: line.worst <= ALLOWED for name, line in lines.items()}
    verdict: Verdict = "does not hold"
    condition = ""
    if all(fits.values()):
        verdict = "holds"
    elif fits["operations"]:
        verdict, condition = "holds only if", "cost is counted in operations: the seconds leave the line"
        if spread > ALLOWED:
            condition = (
                f"cost is counted in operations: the seconds of one and the same step differ by {100 * spread:.0f} % "
                "here, too much to judge 5 %"
            )
    deepest = max(flops)
    fixed = {name: line.start / (line.start + line.slope * deepest) for name, line in lines.items()}
    return Judgement(
        verdict=verdict, condition=condition,
        figure=f"largest residual of a line through {len(flops)} depths to {deepest:,}: operations "
        f"{100 * lines['operations'].worst:.2g} %, seconds {100 * lines['seconds'].worst:.2g} %",
        words=f"{1e3 * lines['seconds'].slope:.2g} ms a layer on one thread of the processor (batch of 2, 8 pixels, "
        f"processor time, median of interleaved rounds, which differ by up to {100 * spread:.0f} %). What does not "
        f"depend on depth is {100 * fixed['operations']:.2g} % of the operations and {100 * fixed['seconds']:.2g} % "
        "of the seconds at the greatest depth. The three weeks on 8 GPUs for 200 layers are not measured.",
        numbers={
            "flops": {str(d): v for d, v in flops.items()}, "seconds": {str(d): v for d, v in seconds.items()},
            "residuals": {name: list(line.residuals) for name, line in lines.items()}, "fixed_share": fixed,
            "rounds": {str(d): list(v) for d, v in taken.items()}, "range_of_repeats": spread,
            "threads": 1, "load_average": os.getloadavg()[0], "torch": torch.__version__,
        },
        parts=(_drawn("Operations of a forward pass", "FLOP", flops, lines["operations"]),
               _drawn("Training step", "s", seconds, lines["seconds"])),
    )  # fmt: skip


def _drawn(title: str, unit: str, costs: Mapping[int, float], line: Line) -> Lines:
    x: Sequence[float] = tuple(map(float, costs))
    return Lines(
        series=(
            Series(name="measured", x=tuple(x), y=tuple(costs.values())),
            Series(name="line", x=tuple(x), y=tuple(line.start + line.slope * d for d in x)),
        ),
        x="layers", unit=unit, log=True, log_x=True, title=title, note="Whether the points leave the line.",
    )  # fmt: skip


@claim(
    "cost-linear",
    source="003, computational cost; He et al. 2016, arXiv 1603.05027, section 5",
    statement="The computational complexity of the models is proportional to depth.",
    measurement="Operations of a forward pass and processor seconds of a training step of pre-activation bottleneck "
    "nets of 29, 65, 119, 245, 497 and 1,001 layers, batch of 2 at 8 pixels, on one thread.",
    criterion="Holds if a line through each, fitted to the least relative residuals, leaves no residual above 5 %; "
    "holds only if cost is counted in operations, where the seconds alone leave more.",
)
def check(bench: Bench) -> Judgement:
    """Six depths, interleaved."""
    rounds = bench.pick(quick=4, standard=20)
    with seeded(0):
        batch = torch.randn(2, 3, 8, 8)
        nets = {depth: create_model(f"resnet{depth}@preact") for depth in DEPTHS}
        flops = {
            depth: float(inspect(net, batch, structure_only=True, profile="fast").totals["flops"])
            for depth, net in nets.items()
        }
        taken = step_seconds(nets, batch, rounds)
    return judged(flops, taken)
