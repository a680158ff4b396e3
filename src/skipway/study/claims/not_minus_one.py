"""Claim ``not-minus-one``: the gradient of a residual stream does not cancel."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from skipway.models import Stack, create_model
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import gradient_ratios, seeded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["VANISHED", "cancelling", "judged"]

# A gradient of a hundredth of that behind the net is no exponential loss; a plain net of 40 layers is at 1e-10.
VANISHED: Final = 0.01
_SHRINK: Final = (1.0, 0.1, 0.01)


def cancelling(width: int = 8, units: int = 3) -> Stack:
    """Units whose branch is −x by construction: its weight matrix is minus the identity."""
    branches = [nn.Linear(width, width, bias=False).double() for _ in range(units)]
    with torch.no_grad():
        for branch in branches:
            branch.weight.copy_(-torch.eye(width))
    return Stack(branches, "post_act", norm="none", act="none")


def judged(found: Mapping[str, Sequence[float]], constructed: float) -> Judgement:
    """By the smallest ratio over all draws, and by the one that was made to cancel.

    Args:
        found: ratios by net, over random weights, batches and units.
        constructed: smallest ratio of a net with F(x) = −x.
    """
    every = [r for values in found.values() for r in values]
    least = min(every)
    verdict: Verdict = "does not hold"
    condition = ""
    if least >= VANISHED:
        verdict = "holds"
        if constructed < VANISHED:
            verdict, condition = "holds only if", "no branch is made to be −x: then ∂F/∂x = −I and nothing arrives"
    quartiles = {name: statistics.quantiles(values, n=4) for name, values in found.items()}
    return Judgement(
        verdict=verdict, condition=condition,
        figure=f"‖∂L/∂x_l‖ / ‖∂L/∂x_L‖ is at least {least:.3g} over {len(every):,} draws of weights, batches and "
        f"units; {constructed:.2g} where F(x) = −x",
        words="Weights a tenth and a hundredth as large are among the draws: the smaller the weights, the nearer is "
        "the ratio to 1. The document prints 'cannot always be 1', for the paper's 'cannot always be −1'.",
        numbers={
            "least": {name: min(values) for name, values in found.items()},
            "median": {name: q[1] for name, q in quartiles.items()},
            "largest": {name: max(values) for name, values in found.items()}, "draws": len(every),
            "constructed": constructed,
        },
        parts=(
            Lines(
                series=tuple(Series(name=name, y=tuple(sorted(values))) for name, values in found.items()),
                x="draw, sorted", log=True, title="‖∂L/∂x_l‖ / ‖∂L/∂x_L‖", note="How near the lowest come to 0.",
            ),
        ),
    )  # fmt: skip


@claim(
    "not-minus-one",
    source="003, He et al. 2016, arXiv 1603.05027, below equation 5",
    statement="The second term of ∂L/∂x_l = ∂L/∂x_L (1 + ∂ΣF/∂x_l) cannot be −1 for a whole mini-batch, so that the "
    "gradient does not vanish, however small the weights are.",
    measurement="‖∂L/∂x_l‖ over ‖∂L/∂x_L‖ for every unit of pre-activation nets, tanh layers and a transformer, over "
    "random weights of three sizes and random batches; and for a net made with F(x) = −x.",
    criterion="Holds if the ratio is at least 0.01 in every draw and in the constructed net; holds only if no branch "
    "is made to be −x, where the constructed net alone falls below.",
)
def check(bench: Bench) -> Judgement:
    """Draws of three nets."""
    draws = bench.pick(quick=3, standard=60)
    found: dict[str, list[float]] = {}
    for name in ("resnet44@preact", "mlp40", "gpt_nano"):
        for shrink in _SHRINK:
            for draw in range(draws):
                found.setdefault(name, []).extend(_drawn(name, shrink, draw))
    with seeded(0):
        constructed = min(gradient_ratios(cancelling(), torch.randn(4, 8).double()))
    return judged(found, constructed)


def _drawn(name: str, shrink: float, draw: int) -> list[float]:
    with seeded(draw):
        net = create_model(name).double()
        batch, classes = net.dummy_input(8), net.num_classes
        if batch.dtype == torch.int64:
            batch = batch[:, :12]
        else:
            batch = batch[..., :8, :8].double() if batch.dim() == 4 else batch.double()
        labels = torch.randint(0, classes, (8,)) if name != "gpt_nano" else None
        with torch.no_grad():
            for unit in net.stack.units:
                for parameter in unit.branches.parameters():  # type: ignore[union-attr]  # a list of modules
                    parameter.mul_(shrink)
    return gradient_ratios(net, batch, labels)
