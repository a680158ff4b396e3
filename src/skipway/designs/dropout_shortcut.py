"""Dropout on the shortcut, inverted or as the paper reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from skipway.blocks import Part, dropout
from skipway.blocks.slot import Make
from skipway.designs._registry import option, register
from skipway.designs._seam import Claims, Site
from skipway.designs._single import PostActLike
from skipway.errors import SkipwayError
from skipway.form import Op


class PlainDropout(nn.Module):
    """Dropout that does not rescale: ``x⊙Bernoulli(1−p)`` in training, ``(1−p)·x`` in eval mode; any shape.

    Args:
        p: probability of a zero.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.keep = 1 - p

    def forward(self, x: Tensor) -> Tensor:
        """Drop or scale."""
        if self.training:
            return x * torch.empty_like(x).bernoulli_(self.keep)
        return x * self.keep


@register(equation="x' = ReLU( D_p(x) + F(x) )", citation="He et al. 2016, arXiv 1603.05027, table 1 (f)")
@dataclass(frozen=True, kw_only=True)
class DropoutShortcut(PostActLike):
    """Dropout on the output of the identity.

    ``x' = ReLU( D_p(h(x)) + F(x) )``. The paper says that it "imposes a scale of λ with an expectation of 0.5 on the
    shortcut": dropout that does not rescale (``inverted=False``). PyTorch's `nn.Dropout` rescales by 1/(1−p) in
    training and has expectation 1 (``inverted=True``).
    """

    p: float = option(0.5, "probability of a zero, strictly between 0 and 1")
    inverted: bool = option(False, "rescale in training, as nn.Dropout does")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p < 1:
            raise SkipwayError(f"dropout_shortcut with p={self.p}", "a probability strictly between 0 and 1")

    def on_shortcut(self, site: Site) -> tuple[Part, ...]:
        """Option A, B or C, then dropout."""
        return super().on_shortcut(site) + (dropout(self.p) if self.inverted else self._plain())

    def _plain(self) -> tuple[Part, ...]:
        # The graph of this one shows a random mask and no probability.
        return (
            Part(
                name="dropout",
                make=Make(PlainDropout, (self.p,)),
                ops=(Op("dropout", ""),),
                eval_ops=(Op("scale", 1 - self.p),),
            ),
        )

    def claims(self) -> Claims:
        """Fails at 110 layers."""
        return Claims(
            identity_at_init=False,
            warm_up=True,
            parameters="none",
            note="an entry survives L shortcuts with probability (1−p)^L; the paper's net fails",
        )
