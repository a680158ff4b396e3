"""Claim ``shape-condition``: shortcut and branch need one shape, and a projection makes it one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import nn

from skipway.models import Unit
from skipway.parts import Text
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded
from skipway.study.claims._shapes import Mended, Refusal, mended, refusal

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["judged", "torch_refuses"]


def torch_refuses(one: Tensor, other: Tensor) -> bool:
    """Whether PyTorch itself refuses a sum."""
    try:
        one + other
    except RuntimeError:
        return True
    return False


def judged(refused: Refusal, mending: Mended, bare: bool, broadcast: bool) -> Judgement:
    """By the error and by what mends it.

    Args:
        refused: what is said of the document's wrong example.
        mending: the same with a projection.
        bare: whether PyTorch refuses the document's wrong example.
        broadcast: whether PyTorch refuses the sum of a map and one number for each channel.
    """
    verdict: Verdict = "holds" if refused.clear and mending.trains and bare else "does not hold"
    said = ", ".join(f"{name}: {'named' if there else 'not named'}" for name, there in refused.names.items())
    return Judgement(
        verdict=verdict,
        figure=f"the unit that does not fit is {'' if refused.text else 'not '}refused ({said}); with the projection "
        f"its error falls from {mending.before:.2g} to {mending.behind:.2g}",
        words="PyTorch refuses the document's wrong example too, by naming one dimension of each. "
        + ("" if broadcast else "It adds what can be stretched, (N,C,1,1) to (N,C,H,W), without a word: ")
        + ("" if broadcast else "shapes that differ are then no error there."),
        numbers={
            "refusal": refused.text, "names": refused.names, "mended": asdict(mending), "torch_refuses": bare,
            "torch_refuses_broadcast": broadcast,
        },
        parts=(Text(text=refused.text),) if refused.text else (),
    )  # fmt: skip


@claim(
    "shape-condition",
    source="000 (why addition), section 7; 001 (residual connections), practical detail 1",
    statement="x and f(x) must have one shape, else the sum is an error; a 1×1 projection of x mends it.",
    measurement="The document's wrong example, (N,64,32,32) to (N,128,16,16), as a unit: what the error says; the "
    "same unit with a projection trained for 60 steps.",
    criterion="Holds if the unit is refused by an error that names both shapes and the projection spelled out, "
    "PyTorch refuses the bare sum, and the unit with that projection loses at least half of its error with the "
    "projection's weights taking part.",
)
def check(_bench: Bench) -> Judgement:
    """The document's own shapes; the training on images of 8 pixels."""
    with seeded(0):
        refused = refusal(
            lambda: Unit(_branch(), "post_act"),
            "(N, 64, H, W)", "(N, 128, H/2, W/2)",
            "nn.Conv2d(64, 128, kernel_size=1, stride=2, bias=False)",
        )  # fmt: skip
        mending = mended(
            _branch(), nn.Conv2d(64, 128, kernel_size=1, stride=2, bias=False), torch.randn(2, 64, 8, 8), steps=60
        )
        bare = torch_refuses(torch.zeros(1, 128, 16, 16), torch.zeros(1, 64, 32, 32))
        broadcast = torch_refuses(torch.zeros(1, 64, 1, 1), torch.zeros(1, 64, 32, 32))
    return judged(refused, mending, bare, broadcast)


def _branch() -> nn.Module:
    return nn.Sequential(nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(128))
