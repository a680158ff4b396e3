"""Claim ``merge-average``: half of each in place of the sum."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import torch

from skipway.models import create_model
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import digits_curve, seeded
from skipway.study.claims.scale_product import ALLOWED, Road, road
from skipway.study.effects import Effect, paired_effect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["judged", "last_loss"]

_LAST: Final = 10
SHARED: Final = 100  # steps of the additive net that another claim reads as well
NETS: Final = {"average": "resnet32@mean", "addition": "resnet32"}


def last_loss(losses: Sequence[float]) -> float:
    """Mean over the last ten steps."""
    return statistics.fmean(losses[-_LAST:])


def judged(roads: Sequence[Road], curves: Mapping[str, Mapping[int, Sequence[float]]]) -> Judgement:
    """By the shortcut path and by the training losses.

    Args:
        roads: of nets that average, with λ = ½.
        curves: training losses by seed, ``"average"`` and ``"addition"``.
    """
    exact = max(one.error for one in roads)
    ends = {name: {seed: last_loss(c) for seed, c in of_net.items()} for name, of_net in curves.items()}
    effect = paired_effect(ends["addition"], ends["average"])
    deepest = max(roads, key=lambda one: one.units)
    verdict: Verdict = "not measured"
    if not exact <= ALLOWED or (_shown(effect) and effect is not None and effect.mean < 0):
        verdict = "does not hold"
    elif _shown(effect):
        verdict = "holds"
    return Judgement(
        verdict=verdict,
        figure=f"½^L of the gradient by the shortcut path ({deepest.backward:.1e} at {deepest.units} units); training "
        f"loss higher by {_interval(effect)} nats behind {len(next(iter(curves['average'].values())))} steps",
        words="Published, 110 layers on CIFAR-10: 12.35 % against 6.61 % (table 1). The document's 'without "
        "theoretical grounds' is not so: equation 8 of the same paper is about exactly this.",
        numbers={
            "roads": [asdict(one) for one in roads], "relative_error": exact,
            "losses": {name: {str(s): v for s, v in of_net.items()} for name, of_net in ends.items()},
            "effect": None if effect is None else asdict(effect),
        },
        parts=(
            Lines(
                series=tuple(
                    Series(name=f"{name}, seed {seed}", y=tuple(c))
                    for name, of_net in curves.items() for seed, c in of_net.items()
                ),
                x="step", unit="nats", title="Training loss",
            ),
        ),
    )  # fmt: skip


def _shown(effect: Effect | None) -> bool:
    return effect is not None and effect.shown


def _interval(effect: Effect | None) -> str:
    if effect is None or effect.low is None or effect.high is None:
        return "an unknown number of"
    return f"{effect.mean:.2f} [{effect.low:.2f}, {effect.high:.2f}]"


@claim(
    "merge-average",
    source="000 (why addition), section 3, variant 3; He et al. 2016, arXiv 1603.05027, table 1, '0.5/0.5'",
    statement="out = 0.5 · f(x) + 0.5 · x works worse than addition.",
    measurement="The gradient along the shortcut path of averaging nets, against ½^L; and the training loss of the "
    "last 10 steps of 32-layer nets (8 channels wide) with average and with addition, 60 steps on digits, paired by "
    "seed.",
    criterion="Holds if the gradient is ½^L to 1e-6, relative, and the loss with average is higher, the 95 % "
    "interval of the difference over 3 seeds leaving 0 out; does not hold if the interval lies below 0; not measured "
    "if it holds 0.",
)
def check(bench: Bench) -> Judgement:
    """Two depths, three seeds."""
    roads = []
    for units in (10, 40):
        with seeded(units):
            net = create_model(f"mlp{units}@mean").double()
            roads.append(road(net, torch.randn(4, 64).double(), 0.5, forward=False))
    seeds, steps = bench.pick(quick=(3, 60), standard=(10, 400))
    # The rate is constant, so that a longer run begins with the shorter one.
    longest = max(steps, SHARED)
    curves = {
        name: {
            seed: digits_curve(model, seed, longest if name == "addition" else steps)[:steps] for seed in range(seeds)
        }
        for name, model in NETS.items()
    }
    return judged(roads, curves)
