"""Parameter counts that the papers and peers state, exactly."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import skipway


@cache
def shapes(name: str, num_classes: int | None) -> Any:
    """The net without numbers; a thousand layers of it take seconds, so that tests share it."""
    with torch.device("meta"):
        return skipway.create_model(name, num_classes=num_classes)


def count(name: str, num_classes: int | None = None) -> int:
    return sum(p.numel() for p in shapes(name, num_classes).parameters())


CIFAR = {20: 269_722, 32: 464_154, 44: 658_586, 56: 853_018, 110: 1_727_962, 1202: 19_421_274}


@pytest.mark.parametrize("depth", CIFAR)
def test_cifar_resnets(depth: int) -> None:
    assert count(f"resnet{depth}") == CIFAR[depth]


@pytest.mark.parametrize("depth", [pytest.param(d, marks=[pytest.mark.exhaustive] if d > 110 else []) for d in CIFAR])
def test_cifar_resnets_with_projections_or_no_shortcuts(depth: int) -> None:
    assert count(f"resnet{depth}@post_act(shortcut=B)") == CIFAR[depth] + 2_752
    assert count(f"plain{depth}") == CIFAR[depth]


@pytest.mark.parametrize(
    ("name", "classes", "expected"),
    [
        ("resnet164@preact", 10, 1_703_258),
        ("resnet1001@preact", 10, 10_327_706),
        ("resnet164@preact", 100, 1_726_388),
        pytest.param("resnet1001@preact", 100, 10_350_836, marks=pytest.mark.exhaustive),
        # Wide ResNet paper: 36.5M; exact figure as computed from its table 1.
        ("wrn28_10", 10, 36_479_194),
        # DenseNet paper, table 2: 1.0M for L = 40, k = 12.
        ("densenet40_12", 10, 1_019_722),
    ],
)
def test_papers(name: str, classes: int, expected: int) -> None:
    assert count(name, classes) == expected


def test_resnet1001_without_batch_norm_is_the_papers_10_2_million() -> None:
    model = shapes("resnet1001@preact", 10)
    norms = sum(p.numel() for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters())
    assert sum(p.numel() for p in model.parameters()) - norms == 10_178_490


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "densenet121"])
def test_torchvision(name: str) -> None:
    from torchvision.models import get_model

    with torch.device("meta"):
        theirs = get_model(name, weights=None)
    assert count(name) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("name", ["vit_small_patch16_224"])
def test_timm(name: str) -> None:
    import timm

    theirs = timm.create_model(name, pretrained=False)  # not all versions make it on the meta device
    assert count(name) == sum(p.numel() for p in theirs.parameters())


def test_resnet200_has_the_published_stages() -> None:
    stages = [unit.plan.site.stage for unit in shapes("resnet200", None).stack.built_units()]
    assert [stages.count(s) for s in range(4)] == [3, 24, 36, 3]


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("resnet110", 54),
        ("resnet164", 54),
        pytest.param("resnet1001", 333, marks=pytest.mark.exhaustive),
        ("resnet1202", 600),
        ("resnet110@one_layer_skip", 108),
    ],
)
def test_units_by_depth(name: str, units: int) -> None:
    assert len(shapes(name, None).stack.units) == units


def test_units_of_nets_that_are_counted_above() -> None:
    assert len(shapes("resnet1001@preact", 10).stack.units) == 333
    assert len(shapes("wrn28_10", 10).stack.units) == 12
