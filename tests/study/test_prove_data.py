"""Proofs on one's own data: models called with several tensors or by keyword, and what is left of their weights."""

# Shapes: N samples, D width, K classes.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipway
from skipway.errors import ModelRunError
from skipway.study.proving.trial import TrialSettings
from skipway.study.proving.trial_task import task_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

D, K = 8, 3
SHORT = TrialSettings(steps=3, batch_size=4, seeds=2)


class Unit(nn.Module):
    """x' = 0.3·x + F(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return 0.3 * x + torch.tanh(self.linear(self.norm(x)))


class Two(nn.Module):
    """Takes two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.units, self.head = nn.Sequential(*[Unit() for _ in range(3)]), nn.Linear(D, K)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.units(a + b))


def pairs(seed: int) -> Iterator[tuple[Any, Tensor]]:
    """Two tensors and classes."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4):
        a, b = torch.randn(4, D, generator=generator), torch.randn(4, D, generator=generator)
        yield (a, b), torch.randint(0, K, (4,), generator=generator)


def named(seed: int) -> Iterator[tuple[Any, Tensor]]:
    """The same by keyword, the other way round."""
    for (a, b), targets in pairs(seed):
        yield {"b": b, "a": a}, targets


def added(seed: int) -> Iterator[tuple[Any, Tensor]]:
    """The same as one tensor."""
    for (a, b), targets in pairs(seed):
        yield a + b, targets


class One(Two):
    """Takes one tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.units(x))


@pytest.mark.parametrize("data", [pairs, named], ids=["several tensors", "by keyword"])
def test_models_called_with_more_than_a_tensor(data: Callable[[int], Any]) -> None:
    """The losses are those of the model that is called with one tensor, the sum."""
    batch = (torch.randn(4, D), torch.randn(4, D))
    found = [
        skipway.prove(
            skipway.inspect(build(), given), "scaled-shortcut", model=build, batch=given, data=how,
            loss=F.cross_entropy, settings=SHORT,
        )
        for build, given, how in ((Two, batch, data), (One, batch[0], added))
    ]  # fmt: skip
    two, one = found
    assert [a.name for a in two.arms] == ["as it is", "identity shortcuts"]
    assert [[c.losses for c in a.courses] for a in two.arms] == [[c.losses for c in a.courses] for a in one.arms]
    assert two.arms[0].courses != two.arms[1].courses


def test_what_a_model_raises_is_said() -> None:
    batch = (torch.randn(4, D), torch.randn(4, D))
    with pytest.raises(ModelRunError) as error:
        skipway.prove(
            skipway.inspect(Two(), batch), "scaled-shortcut", model=Two, batch=batch, data=added,
            loss=F.cross_entropy, settings=SHORT,
        )  # fmt: skip
    assert str(error.value).startswith("the model failed on float32[4,8]: TypeError: ")
    assert isinstance(error.value.__cause__, TypeError)


class Shrinking(One):
    """Its forward writes to its own weights."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.units[1].linear.weight.mul_(0.5)
        return super().forward(x)


def test_the_weights_that_a_forward_writes_to_stay() -> None:
    model, batch = Shrinking(), torch.randn(4, D)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    task_for(model, batch, batch_size=4)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
