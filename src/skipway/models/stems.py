"""What turns the input into the stream: convolutional stems, patches, token embeddings.

Shapes: N batch, C channels, H and W image, P patch side, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from skipway.blocks import Norm
from skipway.errors import SkipwayError

__all__ = ["ConvStem", "PatchStem", "TextStem", "VectorStem"]


class ConvStem(nn.Module):
    """A convolution, with or without its norm and activation, and a pool.

    ``small``: 3×3 at stride 1, (N,C,H,W) to (N,D,H,W). ``large``: 7×7 at stride 2 and 3×3 max pool at stride 2, to
    (N,D,⌈H/4⌉,⌈W/4⌉) (arXiv 1512.03385).

    Args:
        in_channels: C.
        width: D.
        size: ``"small"`` or ``"large"``.
        activated: whether BN and ReLU follow the convolution.
    """

    def __init__(self, in_channels: int, width: int, *, size: Literal["small", "large"], activated: bool) -> None:
        super().__init__()
        large = size == "large"
        self.conv = nn.Conv2d(
            in_channels, width, 7 if large else 3, stride=2 if large else 1, padding=3 if large else 1, bias=False
        )
        self.norm = nn.BatchNorm2d(width) if activated else None
        self.act = nn.ReLU(inplace=True) if activated else None
        self.pool = nn.MaxPool2d(3, stride=2, padding=1) if large else None

    def forward(self, x: Tensor) -> Tensor:
        """(N,C,H,W) to the stream."""
        x = self.conv(x)
        if self.norm is not None and self.act is not None:
            x = self.act(self.norm(x))
        return x if self.pool is None else self.pool(x)


class PatchStem(nn.Module):
    """Patches, a class token and learned positions: (N,C,H,W) to (N,1+HW/P²,D) (arXiv 2010.11929).

    Args:
        in_channels: C.
        width: D.
        image_size: H = W in pixels.
        patch: P in pixels; divides the image size.

    Raises:
        SkipwayError: it does not divide it.
    """

    def __init__(self, in_channels: int, width: int, *, image_size: int, patch: int) -> None:
        super().__init__()
        if image_size % patch:
            raise SkipwayError(f"images of {image_size} pixels in patches of {patch}", "a multiple of the patch side")
        self.image_size = image_size
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + (image_size // patch) ** 2, width))
        self.conv = nn.Conv2d(in_channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        """(N,C,H,W) to (N,T,D).

        Raises:
            SkipwayError: an image of another size.
        """
        if x.shape[2:] != (self.image_size, self.image_size):
            raise SkipwayError(
                f"images of {tuple(x.shape[2:])} pixels",
                f"({self.image_size}, {self.image_size})",
                f"create_model(…, image_size={x.shape[2]})",
            )
        tokens = self.conv(x).flatten(2).transpose(1, 2)
        return torch.cat((self.class_token.expand(tokens.shape[0], -1, -1), tokens), 1) + self.positions


class TextStem(nn.Module):
    """Token and position embeddings: (N,T) integers to (N,T,D).

    Args:
        vocabulary: V.
        width: D.
        context: largest T.
        norm: behind the sum, as in BERT; kind ``"none"`` for none.
    """

    def __init__(self, vocabulary: int, width: int, *, context: int, norm: Norm) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.norm = None if norm.kind == "none" else norm.make(width, "NTD")

    def forward(self, ids: Tensor) -> Tensor:
        """(N,T) to (N,T,D).

        Raises:
            SkipwayError: more tokens than the context holds, or no integers.
        """
        if ids.dim() != 2 or ids.is_floating_point():
            raise SkipwayError(
                f"input {ids.dtype} {tuple(ids.shape)}".replace("torch.", ""), "integer token ids (N, T)"
            )
        if ids.shape[1] > self.context:
            raise SkipwayError(f"{ids.shape[1]} tokens", f"at most {self.context}, the model's context")
        x: Tensor = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return x if self.norm is None else self.norm(x)


class VectorStem(nn.Module):
    """Flattens; a linear layer where the number of features is not the width: (N,…) to (N,D).

    Args:
        features: numbers in a sample.
        width: D.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width) if features != width else None

    def forward(self, x: Tensor) -> Tensor:
        """(N,…) to (N,D)."""
        flat = x.flatten(1)
        out: Tensor = flat if self.linear is None else self.linear(flat)
        return out
