"""Kinds of backbone: records that plan their sites and build their stems, without any design.

A backbone is data: how many units of which width, in which stages, behind which stem and before which head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import nn

from skipway.blocks import AttentionBlock, Block, Conv, ConvBlock, LayerBlock, MLPBlock, Norm, basic, bottleneck
from skipway.designs import Site
from skipway.errors import SkipwayError
from skipway.models.heads import Pooling
from skipway.models.initial import Scheme
from skipway.models.stems import ConvStem, PatchStem, TextStem, VectorStem

__all__ = ["Backbone", "ConvNet", "LayerNet", "TextNet", "VisionTransformer", "depth_error"]

IMAGENET_STATISTICS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CIFAR_STATISTICS = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}


@dataclass(frozen=True, kw_only=True)
class Backbone(ABC):
    """A net without its residual design.

    Args:
        name: as in `create_model`.
        family: row of the table of fits.
        design: published default, as text.
        depth: layers, as the name counts them; blocks of two units for transformers.
        num_classes: outputs.
    """

    pooling: ClassVar[Pooling] = "average"
    reduction: ClassVar[int] = 1
    name: str
    family: str
    design: str
    depth: int
    num_classes: int

    @abstractmethod
    def with_depth(self, depth: int) -> Backbone:
        """The same backbone at another depth.

        Raises:
            SkipwayError: the depth does not fit; names the nearest that do.
        """

    @abstractmethod
    def with_width(self, width: int) -> Backbone:
        """The same backbone, narrower or wider."""

    @abstractmethod
    def with_input(self, *, in_channels: int | None, image_size: int | None) -> Backbone:
        """The same backbone for other inputs.

        Raises:
            SkipwayError: it has no such inputs.
        """

    @abstractmethod
    def sites(self) -> list[Site]:
        """Where units go."""

    @abstractmethod
    def stem(self) -> nn.Module:
        """Input to stream."""

    @abstractmethod
    def cfg(self) -> dict[str, Any]:
        """Input and preprocessing, as timm's ``default_cfg``."""

    @property
    @abstractmethod
    def scheme(self) -> Scheme:
        """Initialisation."""


def depth_error(what: str, depth: int, fits: Sequence[int], rule: str) -> SkipwayError:
    """The error for a depth that does not fit, with the nearest below and above that do."""
    below = max((d for d in fits if d < depth), default=None)
    above = min((d for d in fits if d > depth), default=None)
    near = " or ".join(f"{what}{d}" for d in (below, above) if d is not None)
    return SkipwayError(f"no {what} of depth {depth}", rule, near)


def placed(blocks: Sequence[tuple[int, Block]], **shared: Any) -> list[Site]:
    """Sites for (stage, block) pairs in order of execution."""
    last = len(blocks) - 1
    return [
        Site(block=block, stage=stage, index=i, count=last + 1, first=i == 0, last=i == last, **shared)
        for i, (stage, block) in enumerate(blocks)
    ]


@dataclass(frozen=True, kw_only=True)
class ConvNet(Backbone):
    """Stages of convolutional branches, each stage but the first at half the resolution of the one before.

    Args:
        block: ``"basic"``, ``"bottleneck"``, ``"dense"`` (3×3) or ``"dense_bc"`` (1×1, 3×3).
        counts: units in each stage.
        widths: inner channels of each stage.
        stem_width: channels behind the stem.
        stem_size: ``"small"`` for CIFAR, ``"large"`` for ImageNet.
        activated: whether the stem ends with BN-ReLU.
        shortcut: published option where shapes change.
        per_stage: layers outside the units and layers per unit, for names that count layers; None: depths are listed.
        listed: counts by depth, where depths are listed.
        growth: channels that a concatenating design adds.
        in_channels: of the image.
        image_size: in pixels.
    """

    block: Literal["basic", "bottleneck", "dense", "dense_bc"]
    counts: tuple[int, ...]
    widths: tuple[int, ...]
    stem_width: int
    stem_size: Literal["small", "large"] = "small"
    activated: bool = True
    shortcut: str = ""
    per_stage: tuple[int, int] | None = None
    listed: tuple[tuple[int, tuple[int, ...]], ...] = ()
    growth: int = 0
    in_channels: int = 3
    image_size: int = 32

    @property
    def scheme(self) -> Scheme:
        """He."""
        return "he"

    def with_depth(self, depth: int) -> ConvNet:
        """Other counts of units."""
        prefix = self.name.rstrip("0123456789_")
        if self.per_stage is None:
            fits = dict(self.listed)
            if depth not in fits:
                raise depth_error(prefix, depth, sorted(fits), "depths " + ", ".join(map(str, sorted(fits))))
            return replace(self, depth=depth, counts=fits[depth])
        outside, layers = self.per_stage
        step = layers * len(self.counts)
        units, rest = divmod(depth - outside, step)
        if rest or units < 1:
            below = outside + step * max(units, 0)
            raise depth_error(prefix, depth, [d for d in (below, below + step) if d > outside], f"{step}n+{outside}")
        return replace(self, depth=depth, counts=(units,) * len(self.counts))

    def with_width(self, width: int) -> ConvNet:
        """All widths in proportion; `width` is that of the first stage."""
        if width < 1:
            raise SkipwayError(f"width {width}", "1 or more channels in the first stage")
        first = self.widths[0]
        return replace(
            self,
            widths=tuple(w * width // first for w in self.widths),
            stem_width=max(1, self.stem_width * width // first),
        )

    def with_input(self, *, in_channels: int | None, image_size: int | None) -> ConvNet:
        """Other images."""
        return replace(
            self,
            in_channels=self.in_channels if in_channels is None else in_channels,
            image_size=self.image_size if image_size is None else image_size,
        )

    def sites(self) -> list[Site]:
        """Units of all stages."""
        blocks: list[tuple[int, Block]] = []
        width = self.stem_width
        for stage, (count, inner) in enumerate(zip(self.counts, self.widths, strict=True)):
            for i in range(count):
                block = self._block(width, inner, 2 if stage and not i else 1)
                blocks.append((stage, block))
                width = block.out_width
        return placed(blocks, shortcut=self.shortcut, activated=self.activated, growth=self.growth)

    def _block(self, before: int, inner: int, stride: int) -> ConvBlock:
        if self.block == "basic":
            return basic(before, inner, stride)
        if self.block == "bottleneck":
            return bottleneck(before, inner, stride)
        k, narrow = inner, 4 * inner
        if self.block == "dense":
            return ConvBlock(convs=(Conv(kernel=3, in_width=before, out_width=k, stride=stride),))
        return ConvBlock(
            convs=(
                Conv(kernel=1, in_width=before, out_width=narrow),
                Conv(kernel=3, in_width=narrow, out_width=k, stride=stride),
            )
        )

    def stem(self) -> nn.Module:
        """A convolution."""
        return ConvStem(self.in_channels, self.stem_width, size=self.stem_size, activated=self.activated)

    def cfg(self) -> dict[str, Any]:
        """Images."""
        statistics = IMAGENET_STATISTICS if self.stem_size == "large" else CIFAR_STATISTICS
        return {
            "input_size": (self.in_channels, self.image_size, self.image_size),
            "input_dtype": "float32",
            "interpolation": "bilinear",
            **statistics,
            "first_conv": "stem.conv",
            "classifier": "head.fc",
        }


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
