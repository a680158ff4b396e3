"""Claim ``identity-hard``: a stack of weight matrices hardly learns the identity, a residual unit holds it already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from skipway.models import Stack
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REACHED", "error", "judged", "learnt", "stack", "zeroed_"]

WIDTH: Final = 16
# A hundredth of the variance is left: what a person would still call the identity.
REACHED: Final = 0.01
DEPTHS: Final = (2, 6, 18)


def stack(design: str, depth: int, width: int = WIDTH) -> Stack:
    """Branches that can be the identity exactly: ``W₂ ReLU(W₁ x)``, 2D wide inside, since x = ReLU(x) − ReLU(−x)."""
    branches = [
        nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(depth)
    ]
    return Stack(branches, design, norm="none", act="none")


def zeroed_(net: Stack) -> Stack:
    """The same net with every weight and bias at zero."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    return net


def error(net: nn.Module, width: int = WIDTH) -> float:
    """Mean square of ``net(x) − x`` over that of x, on fresh inputs (N,D)."""
    with seeded(10_000), torch.no_grad():
        x = torch.randn(1024, width)
        return float((net(x) - x).square().mean() / x.square().mean())


def learnt(net: nn.Module, steps: int, width: int = WIDTH, lr: float = 1e-3) -> float:
    """The error behind some steps of Adam on batches of 64."""
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    for _ in range(steps):
        x = torch.randn(64, width)
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return error(net, width)


def judged(plain: Mapping[int, float], residual: Mapping[int, float], at_zero: Mapping[int, float]) -> Judgement:
    """By the error of the plain stack behind training, and of the residual one at zero weights.

    Args:
        plain: error behind training by depth, of plain stacks.
        residual: the same of residual stacks.
        at_zero: error of residual stacks without any training, all weights zero.
    """
    trivial = all(value == 0 for value in at_zero.values())
    hard = sorted(depth for depth, value in plain.items() if value > max(REACHED, residual[depth]))
    verdict: Verdict = "does not hold"
    condition = ""
    if trivial and len(hard) == len(plain):
        verdict = "holds"
    elif trivial and hard:
        verdict, condition = (
            "holds only if",
            f"the stack is deep: {', '.join(map(str, hard))} of {', '.join(map(str, plain))}",
        )
    listed = "; ".join(f"{d} units: plain {plain[d]:.2g}, residual {residual[d]:.2g}" for d in plain)
    return Judgement(
        verdict=verdict, condition=condition,
        figure=f"relative error at zero weights {max(at_zero.values()):.3g} for residual stacks; behind training "
        f"{listed}",
        words="Each branch W₂ ReLU(W₁ x) can be the identity exactly, so that the plain stack can represent what it "
        "is asked for. An error of 1 is that of answering 0.",
        numbers={
            "plain": {str(d): v for d, v in plain.items()}, "residual": {str(d): v for d, v in residual.items()},
            "at_zero": {str(d): v for d, v in at_zero.items()},
        },
        parts=(
            Lines(
                series=tuple(
                    Series(name=name, x=tuple(map(float, values)), y=tuple(values.values()))
                    for name, values in (("plain", plain), ("residual", residual))
                ),
                x="units", log=True, log_x=True, title="What is left of the variance, behind training",
                note="1 is the error of answering 0.",
            ),
        ),
    )  # fmt: skip


@claim(
    "identity-hard",
    source="001 (residual connections), second and third paragraph",
    statement="The identity is surprisingly hard to learn for a stack of weight matrices; for y = x + F(x) it is "
    "trivial: set the weights near zero.",
    measurement="Regression of the identity (16 numbers, Adam, 1e-3, 250 steps of 64) with plain and residual stacks "
    "of 2, 6 and 18 two-layer branches; and residual stacks with all weights zero.",
    criterion="Holds if the residual stacks at zero weights have an error of exactly 0 and the trained plain stacks "
    "keep more than 0.01 of the variance, and more than the trained residual ones, at every depth; holds only if the "
    "stack is deep, where that is so at some depths.",
)
def check(bench: Bench) -> Judgement:
    """Three depths."""
    steps = bench.pick(quick=250, standard=4000)
    plain, residual, at_zero = {}, {}, {}
    for depth in DEPTHS:
        with seeded(depth):
            plain[depth] = learnt(stack("plain", depth), steps)
            residual[depth] = learnt(stack("post_act", depth), steps)
            at_zero[depth] = error(zeroed_(stack("post_act", depth)))
    return judged(plain, residual, at_zero)
