"""Claim ``scale-product``: a constant on the shortcut multiplies the signal by its L-th power, both ways."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.path_spectrum import path_spectrum
from skipway.models import create_model
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded
from skipway.units.alteration import Alteration
from skipway.units.what_if import what_if

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from skipway.models import Net

__all__ = ["Road", "deep", "judged", "road"]

LAMBDAS: Final = (0.5, 0.9, 1.0, 1.1)
ALLOWED: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class Road:
    """The pure shortcut path of a net.

    Args:
        lam: λ of every unit.
        units: L.
        backward: by what the gradient is multiplied from behind the last unit to the first.
        forward: by what the stream is multiplied on its way; None where it was not measured.
    """

    lam: float
    units: int
    backward: float
    forward: float | None

    @property
    def error(self) -> float:
        """Largest relative distance from λ^L."""
        wanted = self.lam**self.units
        return max(abs(v / wanted - 1) for v in (self.backward, self.forward) if v is not None)


def road(net: Net, batch: Tensor, lam: float, *, forward: bool = True) -> Road:
    """Measure the way that passes no branch.

    Args:
        net: whose units have λ on their shortcuts.
        batch: (N,D).
        lam: λ that is supposed.
        forward: whether the stream is measured too, with all branches deleted.
    """
    found = path_spectrum(net, batch, max_length=0, sampled=0)
    ways = {"scaled": found.road_factor, "unchanged": 1.0, "none": 0.0}
    backward = ways.get(found.road, float("nan"))
    return Road(
        lam=lam, units=len(found.units), backward=float("nan") if backward is None else backward,
        forward=_forward(net, batch) if forward else None,
    )  # fmt: skip


def _forward(net: Net, batch: Tensor) -> float:
    seen: list[Tensor] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend((inputs[0].detach(), output.detach()))

    with what_if(net, {"*": Alteration(branch=0.0)}, batch), torch.no_grad():
        handle = net.stack.register_forward_hook(note)
        try:
            net(batch)
        finally:
            handle.remove()
    before, behind = seen
    # By the largest entry: λ^L may be so small that its square is no number.
    return float(behind.abs().max() / before.abs().max())


def deep(lam: float, units: int) -> tuple[Net, Tensor]:
    """A net of tanh layers ``x' = λ·x + F(x)`` in float64, and a batch."""
    with seeded(units):
        return create_model(f"mlp{units}@scaled(lam={lam},mu=1.0)").double(), torch.randn(4, 64).double()


def judged(found: Sequence[Road]) -> Judgement:
    """By the largest relative distance from λ^L."""
    errors = [one.error for one in found]
    worst = max(errors, key=lambda e: float("inf") if e != e else e)  # noqa: PLR0124  # not a number is the worst
    verdict: Verdict = "holds" if worst <= ALLOWED else "does not hold"
    deepest = max(found, key=lambda one: one.units)
    lams = sorted({one.lam for one in found})
    series = tuple(
        Series(
            name=f"λ = {lam:g}", x=tuple(float(o.units) for o in found if o.lam == lam),
            y=tuple(o.backward for o in found if o.lam == lam),
        )
        for lam in lams
    )  # fmt: skip
    return Judgement(
        verdict=verdict,
        figure=f"λ^L to {worst:.1e}, relative, for λ = {', '.join(f'{lam:g}' for lam in lams)} at up to "
        f"{deepest.units:,} units, where λ = {deepest.lam:g} leaves {deepest.backward:.1e} of the gradient",
        words="This is the way that passes no branch. What arrives at the input is the sum over all ways, and the "
        "branches of a trained net may carry what the shortcut does not.",
        numbers={"roads": [asdict(one) for one in found], "relative_error": worst},
        parts=(
            Lines(
                series=series, x="units", log=True, title="Gradient by the way that passes no branch",
                note="Straight lines: λ^L.",
            ),
        ),
    )  # fmt: skip


@claim(
    "scale-product",
    source="003, He et al. 2016, arXiv 1603.05027, equations 6 to 8",
    statement="With h(x) = λx the signal is multiplied by the product of all λ, forward and backward: above 1 it "
    "explodes exponentially, below 1 it vanishes.",
    measurement="The gradient along the pure shortcut path (path length 0) at 8, 24 and 72 units, and the stream "
    "with all branches deleted at 8 and 24, in nets of tanh layers with λ on every shortcut, in float64.",
    criterion="Holds if all are λ^L to 1e-6, relative, for λ = 0.5, 0.9, 1 and 1.1, and the gradient for λ = 0.9 at "
    "1,001 units too.",
)
def check(bench: Bench) -> Judgement:
    """Depths up to 1,001; the deepest for every λ takes longer."""
    depths = (8, 24, 72)
    found = [road(*deep(lam, units), lam, forward=units <= 24) for lam in LAMBDAS for units in depths]
    # 0.5 to the 1,001st is a number still, its square, of which norms are made, is not.
    deepest = bench.pick(quick=(0.9,), standard=(0.9, 1.0, 1.1))
    found += [road(*deep(lam, 1001), lam, forward=False) for lam in deepest]
    return judged(found)
