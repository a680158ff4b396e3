"""What reads the closed stream: a pool and a linear classifier.

Shapes: N batch, C channels, H and W image, T tokens, D width, K classes.
"""

from __future__ import annotations

from typing import Final, Literal

from torch import Tensor, nn

from skipway.errors import SkipwayError

__all__ = ["Head", "Pooling"]

Pooling = Literal["average", "first", "all"]
_POOLINGS: Final = ("average", "first", "all")


class Head(nn.Module):
    """Pool, then ``W x + b``.

    Args:
        width: D, also C.
        classes: K; 0 leaves the pooled features as output.
        pooling: ``"average"`` over the image (N,C,H,W) to (N,C); ``"first"`` token, (N,T,D) to (N,D); ``"all"``, none.
        bias: whether there is a b; one without is tied to the embedding, and another number of classes has one.
    """

    def __init__(self, width: int, classes: int, *, pooling: Pooling, bias: bool = True) -> None:
        super().__init__()
        self.width, self.pooling = width, pooling
        self.tied = None if bias else classes
        self.fc: nn.Module
        self.reset(classes)

    def reset(self, classes: int, pooling: Pooling | None = None) -> None:
        """A new classifier, 0 for none.

        Raises:
            SkipwayError: a negative number; pooling that does not fit the stream.
        """
        if classes < 0:
            raise SkipwayError(f"{classes} classes", "0 or more; 0 leaves the pooled features as output")
        if pooling is not None and pooling != self.pooling:
            if pooling not in _POOLINGS or "average" in (pooling, self.pooling):
                raise SkipwayError(f"pooling {pooling!r} instead of {self.pooling!r}", "one that fits the stream")
            self.pooling = pooling
        self.fc = nn.Linear(self.width, classes, bias=classes != self.tied) if classes else nn.Identity()

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (N,K), or (N,T,K) for ``"all"``; the pooled features with `pre_logits`."""
        if self.pooling == "average":
            x = x.mean((2, 3))
        elif self.pooling == "first":
            x = x[:, 0]
        if pre_logits:
            return x
        logits: Tensor = self.fc(x)
        return logits
