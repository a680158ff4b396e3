"""Claim ``thousand-on-imagenet``: where nets of more than a thousand layers were best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skipway.parts import Table
from skipway.study.claim import Bench, Judgement, claim

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PUBLISHED", "Published", "judged"]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A residual net of the paper's last tables.

    Args:
        data: set.
        layers: of the net.
        error: test error in percent; top-1 on ImageNet.
    """

    data: str
    layers: int
    error: float


# He et al. 2016, arXiv 1603.05027, tables 4 and 5: the residual nets, pre-activation and original.
PUBLISHED: Final = (
    Published(data="CIFAR-10", layers=110, error=6.61),
    Published(data="CIFAR-10", layers=164, error=5.46),
    Published(data="CIFAR-10", layers=1001, error=4.62),
    Published(data="CIFAR-10", layers=1202, error=7.93),
    Published(data="CIFAR-100", layers=164, error=24.33),
    Published(data="CIFAR-100", layers=1001, error=22.71),
    Published(data="ImageNet", layers=152, error=21.1),
    Published(data="ImageNet", layers=200, error=20.1),
)
_DEEP: Final = 1000


def judged(published: Sequence[Published]) -> Judgement:
    """By the best net of each data set in the tables."""
    best = {data: min((p for p in published if p.data == data), key=lambda p: p.error) for data in _sets(published)}
    deepest = max(p.layers for p in published if p.data == "ImageNet")
    said = "so" if best["ImageNet"].layers > _DEEP else "not so"
    listed = ", ".join(f"{p.data} {p.layers:,} layers ({p.error:g} %)" for p in best.values())
    return Judgement(
        verdict="documentary",
        figure=f"{said} in the paper: best in its tables are {listed}; the deepest net on ImageNet has {deepest:,} "
        "layers",
        words="Nothing is run. The tables have no COCO figures; the sentence runs together two of the paper: "
        "residual nets were best on ImageNet and COCO, and nets of over 1,000 layers train.",
        numbers={
            "best": {p.data: p.layers for p in best.values()}, "deepest_on_imagenet": deepest, "in_the_paper": said,
        },
        parts=(
            Table(
                columns=("data", "layers", "test error %"),
                rows=tuple((p.data, f"{p.layers:,}", f"{p.error:g}") for p in published),
                numeric=("layers", "test error %"), title="Residual nets in tables 4 and 5 of arXiv 1603.05027",
                note="The best published figure of each depth; top-1 on ImageNet.",
            ),
        ),
    )  # fmt: skip


def _sets(published: Sequence[Published]) -> list[str]:
    return list(dict.fromkeys(p.data for p in published))


@claim(
    "thousand-on-imagenet",
    source="003, second paragraph; He et al. 2016, arXiv 1603.05027, tables 4 and 5",
    statement="On ImageNet and COCO residual nets of more than 1,000 layers reached the best accuracy.",
    measurement="The published tables, read; nothing is run.",
    criterion="Documentary: 'so in the paper' if the best net on ImageNet in its tables has more than 1,000 layers, "
    "else 'not so'.",
)
def check(_bench: Bench) -> Judgement:
    """The tables."""
    return judged(PUBLISHED)
