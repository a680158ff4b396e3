"""Convolutional backbones: ResNets, wide ResNets, DenseNets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from skipway.blocks import Block, Conv, ConvBlock, basic, bottleneck
from skipway.designs import Site
from skipway.errors import SkipwayError
from skipway.models.backbone import CIFAR_STATISTICS, IMAGENET_STATISTICS, Backbone, depth_error, placed
from skipway.models.initial import Scheme
from skipway.models.stems import ConvStem

__all__ = ["ConvNet"]


@dataclass(frozen=True, kw_only=True)
class ConvNet(Backbone):
    """Stages of convolutional branches, each stage but the first at half the resolution of the one before.

    Args:
        block: ``"basic"``, ``"bottleneck"``, ``"dense"`` (3×3) or ``"dense_bc"`` (1×1, 3×3).
        counts: units in each stage.
        widths: inner channels of each stage.
        stem_width: channels behind the stem.
        fixed_stem: whether the stem keeps its width at any width of the stages (arXiv 1605.07146, table 1).
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
    fixed_stem: bool = False
    stem_size: Literal["small", "large"] = "small"
    activated: bool = True
    shortcut: str = ""
    per_stage: tuple[int, int] | None = None
    listed: tuple[tuple[int, tuple[int, ...]], ...] = ()
    growth: int = 0
    in_channels: int = 3
    image_size: int = 32

    @property
    def reduction(self) -> int:
        """Four with an ImageNet stem."""
        return 4 if self.stem_size == "large" else 1

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
                rule = "depths " + ", ".join(map(str, sorted(fits)))
                raise depth_error(prefix, depth, sorted(fits), rule, "depth=")
            return replace(self, depth=depth, counts=fits[depth])
        outside, layers = self.per_stage
        step = layers * len(self.counts)
        units, rest = divmod(depth - outside, step)
        if rest or units < 1:
            below = outside + step * max(units, 0)
            fits_near = [d for d in (below, below + step) if d > outside]
            raise depth_error(prefix, depth, fits_near, f"{step}n+{outside}", "depth=")
        return replace(self, depth=depth, counts=(units,) * len(self.counts))

    def with_width(self, width: int) -> ConvNet:
        """All widths in proportion, and what units concatenate; `width` is that of the first stage."""
        if width < 1:
            raise SkipwayError(f"width {width}", "1 or more channels in the first stage")
        first = self.widths[0]
        return replace(
            self,
            widths=tuple(w * width // first for w in self.widths),
            stem_width=self.stem_width if self.fixed_stem else max(1, self.stem_width * width // first),
            growth=self.growth * width // first,
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
