"""Claim ``no-extra-parameters``: addition costs no parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from skipway.models import create_model, list_models
from skipway.parts import Table
from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._measures import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

__all__ = ["counts", "depths", "judged", "parameters"]

_PLAIN: Final = "plain"


def parameters(net: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in net.parameters())


def depths() -> list[int]:
    """Listed depths of plain nets."""
    return sorted(int(name.removeprefix(_PLAIN)) for name in list_models(f"{_PLAIN}*"))


def counts(of: Sequence[int], residual: str = "resnet{depth}") -> dict[int, tuple[int, int]]:
    """Parameters of the plain and of the residual net, by depth.

    Args:
        of: which depths.
        residual: name of the residual net, with ``{depth}``.
    """
    with seeded(0), torch.device("meta"):  # nothing is drawn there, and the generator moves on all the same
        return {
            depth: tuple(  # type: ignore[misc]  # of two
                parameters(create_model(name.format(depth=depth))) for name in (f"{_PLAIN}{{depth}}", residual)
            )
            for depth in of
        }


def judged(found: Mapping[int, tuple[int, int]], projected: Mapping[int, tuple[int, int]]) -> Judgement:
    """By the differences.

    Args:
        found: plain and residual counts by depth.
        projected: the same for residual nets with projections.
    """
    more = {depth: residual - plain for depth, (plain, residual) in found.items()}
    most = max(more.values(), key=abs)
    extra = sorted({residual - plain for plain, residual in projected.values()})
    rows = tuple((f"{depth}", f"{a:,}", f"{b:,}", f"{b - a:,}") for depth, (a, b) in found.items())
    return Judgement(
        verdict="holds" if most == 0 else "does not hold",
        figure=f"plain and residual nets of {', '.join(map(str, found))} layers differ by {most:,} parameters at most",
        words=f"What costs parameters is a projection where the shape changes: {', '.join(f'{e:,}' for e in extra)} "
        "with option B.",
        numbers={"plain_and_residual": {str(d): list(pair) for d, pair in found.items()}, "option_b_adds": extra},
        parts=(
            Table(
                columns=("layers", "plain", "residual", "difference"), rows=rows,
                numeric=("layers", "plain", "residual", "difference"), title="Parameters",
            ),
        ),
    )  # fmt: skip


@claim(
    "no-extra-parameters",
    source="000 (why addition), key conclusions",
    statement="Addition is a simple operation without additional parameters.",
    measurement="Parameters of plain and residual nets of every listed depth, counted on the built nets.",
    criterion="Holds if the difference is 0 at every depth.",
)
def check(_bench: Bench) -> Judgement:
    """Every listed depth, built without memory."""
    every = depths()
    return judged(counts(every), counts(every[:1], "resnet{depth}@post_act(shortcut=B)"))
