"""What a backbone is: a record that plans its sites and builds its stem, without any design.

A backbone is data: how many units of which width, in which stages, behind which stem and before which head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from torch import nn

from skipway.blocks import Block
from skipway.designs import Site
from skipway.errors import SkipwayError
from skipway.models.heads import Pooling
from skipway.models.initial import Scheme

__all__ = ["CIFAR_STATISTICS", "IMAGENET_STATISTICS", "Backbone", "depth_error", "placed"]

IMAGENET_STATISTICS: Final = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
CIFAR_STATISTICS: Final = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}


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
    def reduction(self) -> int:
        """Input pixels per step behind the stem."""
        return 1

    @property
    @abstractmethod
    def scheme(self) -> Scheme:
        """Initialisation."""


def depth_error(what: str, depth: int, fits: Sequence[int], rule: str, spelled: str = "") -> SkipwayError:
    """The error for a depth that does not fit, with the nearest below and above that do.

    Args:
        what: the family.
        depth: that was given.
        fits: depths that do.
        rule: which do, in words.
        spelled: what stands before a depth where one is asked for; ``""``: the family, whose names have any depth.
    """
    below = max((d for d in fits if d < depth), default=None)
    above = min((d for d in fits if d > depth), default=None)
    near = " or ".join(f"{spelled or what}{d}" for d in (below, above) if d is not None)
    return SkipwayError(f"no {what} of depth {depth}", rule, near)


def placed(blocks: Sequence[tuple[int, Block]], **shared: Any) -> list[Site]:
    """Sites for (stage, block) pairs in order of execution."""
    last = len(blocks) - 1
    return [
        Site(block=block, stage=stage, index=i, count=last + 1, first=i == 0, last=i == last, **shared)
        for i, (stage, block) in enumerate(blocks)
    ]
