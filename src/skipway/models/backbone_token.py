"""Backbones on tokens and vectors: transformers and layer stacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from skipway.blocks import AttentionBlock, Block, LayerBlock, MLPBlock, Norm
from skipway.designs import Site
from skipway.errors import SkipwayError
from skipway.models.backbone import CIFAR_STATISTICS, IMAGENET_STATISTICS, Backbone, placed
from skipway.models.heads import Pooling
from skipway.models.initial import Scheme
from skipway.models.stems import PatchStem, TextStem, VectorStem

__all__ = ["LayerNet", "TextNet", "VisionTransformer"]


@dataclass(frozen=True, kw_only=True)
class _Transformer(Backbone):
    """Blocks of two units: attention, then MLP.

    Args:
        width: D.
        heads: of attention.
        norm: its norm.
        causal: whether tokens see only what is before them.
    """

    width: int
    heads: int
    norm: Norm
    causal: bool = False

    def with_width(self, width: int) -> _Transformer:
        """Another D; heads of the same width as far as that divides it."""
        head = self.width // self.heads
        return replace(self, width=width, heads=width // head if width >= head and width % head == 0 else 1)

    def with_depth(self, depth: int) -> _Transformer:
        """Other number of blocks."""
        if depth < 1:
            raise SkipwayError(f"{self.name} of depth {depth}", "1 or more blocks, each attention and MLP")
        return replace(self, depth=depth)

    def sites(self) -> list[Site]:
        """Two for each block; four stages of about equal length."""
        blocks: list[tuple[int, Block]] = []
        for i in range(self.depth):
            stage = i * min(4, self.depth) // self.depth
            d = self.width
            attention = AttentionBlock(reads=d, writes=d, width=d, heads=self.heads, causal=self.causal)
            blocks.append((stage, attention))
            blocks.append((stage, MLPBlock(reads=d, writes=d, hidden=4 * d, act="gelu")))
        return placed(blocks, norm=self.norm, act="gelu")


@dataclass(frozen=True, kw_only=True)
class VisionTransformer(_Transformer):
    """Patches, class token, transformer (arXiv 2010.11929).

    Args:
        patch: side in pixels.
        image_size: in pixels.
        in_channels: of the image.
    """

    pooling: ClassVar[Pooling] = "first"
    patch: int
    image_size: int
    in_channels: int = 3

    @property
    def reduction(self) -> int:
        """The patch."""
        return self.patch

    @property
    def scheme(self) -> Scheme:
        """As timm."""
        return "truncated"

    def with_input(self, *, in_channels: int | None, image_size: int | None) -> VisionTransformer:
        """Other images."""
        return replace(
            self,
            in_channels=self.in_channels if in_channels is None else in_channels,
            image_size=self.image_size if image_size is None else image_size,
        )

    def stem(self) -> nn.Module:
        """Patches."""
        return PatchStem(self.in_channels, self.width, image_size=self.image_size, patch=self.patch)

    def cfg(self) -> dict[str, Any]:
        """Images."""
        return {
            "input_size": (self.in_channels, self.image_size, self.image_size),
            "input_dtype": "float32",
            "interpolation": "bicubic",
            **(IMAGENET_STATISTICS if self.image_size == 224 else CIFAR_STATISTICS),
            "first_conv": "stem.conv",
            "classifier": "head.fc",
        }


@dataclass(frozen=True, kw_only=True)
class TextNet(_Transformer):
    """Token ids to logits for each token.

    Args:
        vocabulary: number of ids.
        context: largest number of tokens.
        embedding_norm: whether a norm follows the embeddings, as in BERT.
        tied: whether the head shares the embedding's weights, as in GPT-2.
    """

    pooling: ClassVar[Pooling] = "all"
    vocabulary: int = 256
    context: int = 256
    embedding_norm: bool = False
    tied: bool = False

    @property
    def scheme(self) -> Scheme:
        """As GPT-2."""
        return "gpt"

    def with_input(self, *, in_channels: int | None, image_size: int | None) -> TextNet:
        """None but its own."""
        if in_channels is not None or image_size is not None:
            raise SkipwayError(f"in_channels or image_size for {self.name}", "neither; it reads token ids (N, T)")
        return self

    def stem(self) -> nn.Module:
        """Embeddings."""
        norm = self.norm if self.embedding_norm else Norm(kind="none")
        return TextStem(self.vocabulary, self.width, context=self.context, norm=norm)

    def cfg(self) -> dict[str, Any]:
        """Token ids."""
        return {
            "input_size": (min(32, self.context),),
            "input_dtype": "int64",
            "vocabulary": self.vocabulary,
            "context": self.context,
            "classifier": "head.fc",
        }


@dataclass(frozen=True, kw_only=True)
class LayerNet(Backbone):
    """A stack of single linear layers with their activation.

    Args:
        width: D.
        act: activation.
        features: numbers in a sample; a linear stem where that is not D.
    """

    pooling: ClassVar[Pooling] = "all"
    width: int
    act: str
    features: int

    @property
    def scheme(self) -> Scheme:
        """PyTorch's."""
        return "default"

    def with_depth(self, depth: int) -> LayerNet:
        """Other number of layers."""
        if depth < 1:
            raise SkipwayError(f"mlp of depth {depth}", "1 or more layers", "mlp40")
        return replace(self, depth=depth)

    def with_width(self, width: int) -> LayerNet:
        """Another D."""
        return replace(self, width=width)

    def with_input(self, *, in_channels: int | None, image_size: int | None) -> LayerNet:
        """Other number of features."""
        if image_size is not None:
            raise SkipwayError(f"image_size for {self.name}", "in_channels, the numbers in a sample")
        return self if in_channels is None else replace(self, features=in_channels)

    def sites(self) -> list[Site]:
        """One for each layer; four stages of about equal length."""
        stages = min(4, self.depth)
        return placed(
            [
                (i * stages // self.depth, LayerBlock(reads=self.width, writes=self.width, act=self.act))
                for i in range(self.depth)
            ],
            norm=Norm(kind="none"),
            act=self.act,
        )

    def stem(self) -> nn.Module:
        """Flattens."""
        return VectorStem(self.features, self.width)

    def cfg(self) -> dict[str, Any]:
        """Numbers."""
        return {"input_size": (self.features,), "input_dtype": "float32", "classifier": "head.fc"}
