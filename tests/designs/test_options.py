# ruff: noqa: E501 (messages stand here whole, as they are printed)
"""What a design's options take, whether written as text or in Python, and what they add in parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import skipway
from skipway.designs import DESIGNS
from skipway.designs.highway import Highway
from skipway.designs.mean import Mean
from skipway.designs.momentum import Momentum
from skipway.designs.multiply import Multiply
from skipway.designs.post_act import PostAct
from skipway.designs.pre_norm import PreNorm
from skipway.designs.preact import Preact
from skipway.errors import SkipwayError
from skipway.models import PlannedStack, parse_name

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PreNorm(init="gpt-2"), "option init=gpt-2 of design 'pre_norm'\nexpected: default|gpt2\ntry: pre_norm(init=default)"),
        (lambda: PreNorm(norm="layernorm"), "option norm=layernorm of design 'pre_norm'\nexpected: auto|layer|rms\ntry: pre_norm(norm=auto)"),
        (lambda: Mean(keep="Mean"), "option keep=Mean of design 'mean'\nexpected: mean|variance\ntry: mean(keep=mean)"),
        (lambda: PostAct(shortcut="c"), "option shortcut=c of design 'post_act'\nexpected: auto|A|B|C\ntry: post_act(shortcut=auto)"),
        (lambda: Highway(bias=float("nan")), "option bias=nan of design 'highway'\nexpected: a finite number\ntry: highway(bias=-3.0)"),
        (lambda: Highway(bias="low"), "option bias=low of design 'highway'\nexpected: a number\ntry: highway(bias=-3.0)"),
        (lambda: Multiply(plus_one=1), "option plus_one=1 of design 'multiply'\nexpected: true or false\ntry: multiply(plus_one=True)"),
        (lambda: Momentum(gamma=True), "option gamma=True of design 'momentum'\nexpected: a number\ntry: momentum(gamma=0.9)"),
        (lambda: Preact(dropout=float("inf")), "option dropout=inf of design 'preact'\nexpected: a finite number\ntry: preact(dropout=0.0)"),
        (lambda: DESIGNS["dense"](growth=1.5), "option growth=1.5 of design 'dense'\nexpected: a whole number\ntry: dense(growth=0)"),
    ],
)  # fmt: skip
def test_options_are_checked_in_python_too(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SkipwayError) as error:
        make()
    assert str(error.value) == message


def test_whole_numbers_are_numbers() -> None:
    assert Highway(bias=-2).bias == -2


def test_what_text_gives_is_checked_as_well() -> None:
    with pytest.raises(SkipwayError, match="option bias=nan of design 'highway'"):
        skipway.create_model("mlp4@highway(bias=nan)")


@pytest.mark.parametrize("base", ["gpt_nano", "vit_tiny", "mlp8", "resnet8"])
@pytest.mark.parametrize("design", ["post_act", "scaled", "exclusive_gate", "highway", "mean", "multiply", "preact"])
def test_parameters_of_projections_on_every_shortcut(base: str, design: str) -> None:
    if base != "resnet8" and design == "preact":
        design = "shortcut_gate"
    net, chosen = parse_name(f"{base}@{design}(shortcut=C)")
    net = net.with_depth(2) if base in ("gpt_nano", "vit_tiny") else net

    def count(text: str) -> int:
        return sum(p.numel() for p in PlannedStack(parse_name(f"{base}@{text}")[1], net.sites()).parameters())

    with torch.device("meta"):
        added = count(f"{design}(shortcut=C)") - count("plain")
    assert chosen.extra_parameters(net.sites()) == added > 0


def test_parameters_of_a_shortcut_of_ones_own() -> None:
    shortcut = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8))
    unit = skipway.Unit(nn.Conv2d(4, 8, 3, padding=1), "post_act", shortcut=shortcut)
    branch = 9 * 4 * 8 + 8
    assert unit.design.extra_parameters([unit.plan.site]) == sum(p.numel() for p in unit.parameters()) - branch
