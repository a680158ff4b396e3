"""Claim ``merge-multiply``: a product in place of the sum loses the signal where the branch is small."""

from __future__ import annotations

import math
import tempfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import torch

from skipway.models import create_model
from skipway.parts import Lines, Series
from skipway.spec import DataSpec, OptimizerSpec, RecipeSpec, RunSpec, ScheduleSpec
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import gradient_ratios, passes, seeded
from skipway.train.plan import fit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from skipway.models import Net

__all__ = ["Depth", "final_loss", "judged", "small", "through"]

VANISHED: Final = 1e-6
_KEPT: Final = (0.1, 10.0)
_SMALL: Final = 0.1
PRODUCT: Final = "multiply(plus_one=false)"


@dataclass(frozen=True, kw_only=True)
class Depth:
    """What becomes of a signal from the first unit to the last, and of the gradient on its way back.

    Args:
        signal: largest entry of the stream in front of each unit and behind the last, over the first.
        gradient: ‖∂L/∂x‖ in front of the first unit over that behind the last.
    """

    signal: tuple[float, ...]
    gradient: float

    @property
    def kept(self) -> bool:
        """Whether both are of the size that they had."""
        return all(_KEPT[0] <= v <= _KEPT[1] for v in (self.signal[-1], self.gradient))

    @property
    def vanished(self) -> bool:
        """Whether both are gone."""
        return self.signal[-1] < VANISHED and self.gradient < VANISHED


def small(design: str, depth: int = 20) -> Net:
    """A net of tanh layers in float64 whose branches are small: their weights and biases a tenth of the usual."""
    net = create_model(f"mlp{depth}@{design}").double()
    with torch.no_grad():
        for unit in net.stack.built_units():
            for parameter in unit.branches.parameters():
                parameter.mul_(_SMALL)
    return net


def through(net: Net, batch: Tensor) -> Depth:
    """Measure signal and gradient over all units."""
    found = passes(net, batch)
    sizes = [float(t.abs().max()) for t in (*(p.x for p in found), found[-1].out)]
    try:
        gradient = gradient_ratios(net, batch)[0]
    except ZeroDivisionError:  # nothing left to compare with
        gradient = 0.0
    return Depth(signal=tuple(size / sizes[0] for size in sizes), gradient=gradient)


def final_loss(model: str, steps: int, seed: int = 0) -> float:
    """Training loss of the last ten steps on digits, in nats; infinite where the run diverged."""
    recipe = RecipeSpec(
        optimizer=OptimizerSpec(lr=0.1, weight_decay=0.0), schedule=ScheduleSpec(name="constant"), steps=steps,
        batch_size=32,
    )  # fmt: skip
    spec = RunSpec(
        model=model, data=DataSpec(name="digits"), recipe=recipe, seed=seed, precision="32-true", accelerator="cpu",
        threads=1, inspect=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        run = fit(spec, out=folder)
        losses = [line["loss"] for line in run.metrics() if "loss" in line]
        return float(losses[-1]) if run.result["status"] == "finished" else math.inf


def judged(product: Depth, addition: Depth, plus_one: Depth, losses: Mapping[str, float]) -> Judgement:
    """By what is left of signal and gradient, and by a short training.

    Args:
        product: of x ⊙ F(x).
        addition: of x + F(x).
        plus_one: of x ⊙ (1 + F(x)), for comparison.
        losses: of the last steps of training, ``"product"`` and ``"addition"``.
    """
    verdict: Verdict = "does not hold"
    condition = ""
    if product.vanished and addition.kept:
        verdict = "holds"
        if not losses["product"] > losses["addition"]:
            verdict, condition = "holds only if", "the branch is small: the trained net makes up for it"
    units = len(product.signal) - 1
    drawn = {"x ⊙ F(x)": product, "x + F(x)": addition, "x ⊙ (1 + F(x))": plus_one}
    return Judgement(
        verdict=verdict, condition=condition,
        figure=f"over {units} units with small branches x ⊙ F(x) leaves {product.signal[-1]:.1e} of the signal and "
        f"{product.gradient:.1e} of the gradient, x + F(x) {addition.signal[-1]:.2g} and {addition.gradient:.2g}; in "
        f"training the product {_loss(losses['product'])}, addition {_loss(losses['addition'])} (guessing: 2.30)",
        words=f"x ⊙ (1 + F(x)) leaves {plus_one.signal[-1]:.2g} and {plus_one.gradient:.2g}: what vanishes is the "
        "product with F alone.",
        numbers={name: asdict(one) for name, one in drawn.items()}
        | {"losses": {name: v if math.isfinite(v) else None for name, v in losses.items()}},
        parts=(
            Lines(
                # A signal of 0 has no place on a logarithmic scale.
                series=tuple(Series(name=n, y=tuple(v or None for v in one.signal)) for n, one in drawn.items()),
                log=True, title="Largest entry of the stream, over that in front of the first unit",
            ),
        ),
    )  # fmt: skip


def _loss(value: float) -> str:
    return f"ends at a loss of {value:.2f}" if math.isfinite(value) else "diverges"


@claim(
    "merge-multiply",
    source="000 (why addition), section 3, variant 2",
    statement="With out = f(x) × x the output goes to 0 where f(x) does, and the gradients may vanish.",
    measurement="Signal and gradient through 20 tanh layers with weights a tenth of the usual, merged by product and "
    "by addition; and 20-layer convolutional nets of each, trained for 50 steps on digits.",
    criterion="Holds if the product leaves less than 1e-6 of both, addition between 0.1 and 10 times of both, and "
    "the product's training loss is higher; holds only if the branch is small, where the training loss is not higher.",
)
def check(bench: Bench) -> Judgement:
    """Three merges through depth, two of them trained."""
    steps = bench.pick(quick=50, standard=400)
    with seeded(0):
        batch = torch.randn(4, 64).double()
        product, addition, plus_one = (through(small(d), batch) for d in (PRODUCT, "post_act", "multiply"))
    losses = {
        "product": final_loss(f"resnet20@{PRODUCT}", steps), "addition": final_loss("resnet20", steps),
    }  # fmt: skip
    return judged(product, addition, plus_one, losses)
