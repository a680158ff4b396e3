"""Claim ``projection``: where a block changes the number of channels, its shortcut needs a projection."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import nn

from skipway.blocks.shortcut import SubsamplePad
from skipway.models import Unit
from skipway.parts import Table
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded
from skipway.study.claims._shapes import Mended, Refusal, mended, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["judged"]


def judged(refused: Mapping[str, Refusal], projected: Mapping[str, Mended], padded: Mended) -> Judgement:
    """By whether nothing, a projection, and zeros without weights make the unit train.

    Args:
        refused: units with nothing on the shortcut, by kind.
        projected: the same with a projection.
        padded: an image unit with zeros for the new channels.
    """
    needed = all(one.clear for one in refused.values())
    enough = all(one.trains for one in projected.values())
    verdict: Verdict = "does not hold"
    condition = ""
    if needed and enough:
        verdict = "holds"
        if padded.trains and padded.weights == 0:
            verdict, condition = "holds only if", "zeros for the new channels (option A, no weights) do not count"
    kinds = {**{f"projection, {name}": one for name, one in projected.items()}, "zeros for the new channels": padded}
    listed = ", ".join(f"{name} {one.before:.2g} to {one.behind:.2g}" for name, one in kinds.items())
    return Judgement(
        verdict=verdict, condition=condition,
        figure=f"with nothing on the shortcut such units are {'' if needed else 'not '}refused clearly; error behind "
        f"60 steps: {listed}",
        words="He et al. 2015 build all their CIFAR nets with zeros (option A); projections (B) gave 24.52 % against "
        "25.03 % on ImageNet at 34 layers (arXiv 1512.03385).",
        numbers={
            "refusals": {name: one.text for name, one in refused.items()},
            "mended": {name: asdict(one) for name, one in kinds.items()},
        },
        parts=(
            Table(
                columns=("on the shortcut", "weights", "error before", "error behind"),
                rows=tuple((name, f"{o.weights:,}", f"{o.before:.3g}", f"{o.behind:.3g}") for name, o in kinds.items()),
                numeric=("weights", "error before", "error behind"), title="Units that double their channels",
            ),
        ),
    )  # fmt: skip


@claim(
    "projection",
    source="001 (residual connections), practical detail 1",
    statement="If the block changes the number of channels, a projection is needed in the shortcut: a 1×1 "
    "convolution or a linear layer.",
    measurement="Units that double their channels, on images and on vectors: with nothing on the shortcut, with the "
    "projection, and on images with zeros for the new channels, which have no weights; each trained for 60 steps.",
    criterion="Does not hold unless nothing is refused by an error that names the projection, and the projected "
    "units lose at least half of their error; holds only if zeros do not count, where a shortcut without weights "
    "trains too.",
)
def check(_bench: Bench) -> Judgement:
    """One convolution and one linear layer."""
    with seeded(0):
        refused = {
            "images": refusal(
                lambda: Unit(_conv(), "post_act"), "nn.Conv2d(16, 32, kernel_size=1, stride=1, bias=False)"
            ),
            "vectors": refusal(lambda: Unit(nn.Linear(16, 32), "post_act"), "nn.Linear(16, 32)"),
        }
        images, vectors = torch.randn(4, 16, 4, 4), torch.randn(8, 16)
        projected = {
            "images": mended(_conv(), nn.Conv2d(16, 32, kernel_size=1, bias=False), images, steps=60),
            "vectors": mended(nn.Linear(16, 32), nn.Linear(16, 32), vectors, steps=60),
        }
        padded = mended(_conv(), SubsamplePad(1, 16), images, steps=60)
    return judged(refused, projected, padded)


def _conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
