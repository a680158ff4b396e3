"""What cannot be built is refused in words: what was given, what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import skipway
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "name of another type": (lambda: skipway.create_model(None), "a model name of type NoneType"),  # type: ignore[call-overload]
    "no channels": (lambda: skipway.create_model("resnet20", in_channels=0), "in_channels=0"),
    "negative channels": (lambda: skipway.create_model("resnet20", in_channels=-3), "in_channels=-3"),
    "half a class": (lambda: skipway.create_model("resnet20", num_classes=2.5), "num_classes=2.5"),  # type: ignore[call-overload]
    "a truth value": (lambda: skipway.create_model("resnet20", num_classes=True), "num_classes=True"),
    "a word as depth": (lambda: skipway.create_model("resnet20", depth="x"), "depth='x'"),  # type: ignore[call-overload]
    "no number": (lambda: skipway.create_model("resnet20@scaled(lam=nan)"), "lam=nan"),
    "infinite": (lambda: skipway.create_model("resnet20@scaled(mu=inf)"), "mu=inf"),
    "a function as branch": (lambda: skipway.Unit(torch.tanh), "a branch of type builtin_function"),  # type: ignore[arg-type]
    "a lambda in a stack": (lambda: skipway.Stack([lambda x: x]), "a branch of type function"),  # type: ignore[list-item]
    "a branch that overwrites x": (
        lambda: skipway.Unit(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), design="pre_norm"),
        "overwrites x before the shortcut reads it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    build, text = REFUSED[what]
    with pytest.raises(SkipwayError) as refusal:
        build()
    assert text in str(refusal.value)
    assert "expected:" in str(refusal.value)


def test_in_place_layers_further_on_are_fine() -> None:
    unit = skipway.Unit(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)), design="pre_norm")
    x = torch.randn(2, 3, 4)
    before = x.clone()
    unit(x)
    assert torch.equal(x, before)
