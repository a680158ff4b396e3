"""A neutral alteration goes through the interception and changes no bit: outputs and gradients, in train mode.

The model it is compared with runs under a function mode that does nothing, as its presence alone opens fused paths.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from skipway.errors import SkipwayError
from skipway.trace.batch import call_arguments, copied, output_tensors
from skipway.units.alter import Planner
from skipway.units.alteration import Alteration
from skipway.units.intercept import Plan, intercepted
from skipway.units.locate import locate
from units.hand_edited import ConvNet, TokenNet
from zoo.models import ZOO

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries' deprecations

# In x + a·(F(x) − x) the shortcut (1 − a)·x is no operand: multiplying it is refused, by model at so many units.
REFUSED = {"timm/efficientformer_l1": 14, "timm/efficientvim_m1": 24}
NOT_TRAINABLE = {"hf/wav2vec2": "the model itself fails in train mode on inputs this short"}


CHANGES = (Alteration(), Alteration(branch_gradient=1.0), Alteration(shortcut=1.0))


class Inert(TorchFunctionMode):
    """Runs every function as it is."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@dataclass
class Outcome:
    """What a sweep over one model gave: differing tensors, alterations made, and why others were refused."""

    differing: list[str]
    altered: int
    refused: list[str]


def run(model: nn.Module, batch: Any, within: AbstractContextManager[Any]) -> dict[str, Tensor]:
    """Outputs and gradients of one training step, the same random numbers each time."""
    torch.manual_seed(1)
    model.zero_grad(set_to_none=True)
    args, kwargs = copied(call_arguments(batch))
    with within:
        output = model(*args, **kwargs)
    shown = [t for t in output_tensors(output) if t.is_floating_point()]
    loss = sum((t.float() * torch.linspace(-1, 1, t.numel()).view(t.shape)).sum() for t in shown if t.requires_grad)
    loss.backward()
    return {
        **{f"output {k}": t.detach().clone() for k, t in enumerate(shown)},
        **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None},
    }


def sweep(model: nn.Module, batch: Any) -> Outcome:
    """Alter every unit neutrally in branch, gradient and shortcut, where that can be done."""
    located = locate(model, batch, proofs=True)
    planner, refused, altered = Planner(located, batch), [], 0
    for (path, unit), change in product(located.units().items(), CHANGES):
        with suppress(SkipwayError):
            planner.alter(path, unit, change)
            altered += 1
            continue
        refused.append(f"{path}: {change}")
    plan: Plan = planner.plan()
    plain = run(model, batch, Inert())
    changed = run(model, batch, intercepted(model, plan))
    names = plain.keys() | changed.keys()
    differing = [n for n in names if n not in plain or n not in changed or not _same(plain[n], changed[n])]
    return Outcome(sorted(differing), altered, refused)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def check(model: nn.Module, batch: Any, refused: int = 0) -> None:
    """Nothing differs, and all units were altered but so many."""
    outcome = sweep(model, batch)
    assert outcome.differing == []
    assert len(outcome.refused) == refused, outcome.refused


KINDS = ("post_norm", "minus", "alpha", "parallel", "addcmul", "addmm", "lerp", "stack_mean", "ignored", "gate")


@pytest.mark.parametrize("kind", KINDS)
def test_tokens(kind: str) -> None:
    torch.manual_seed(0)
    check(TokenNet(kind).train(), torch.randn(3, 5, 8))


def test_images() -> None:
    torch.manual_seed(0)
    check(ConvNet().train(), torch.randn(4, 3, 8, 8))


QUICK = ("timm/resnet18", "hf/bert", "hf/gptj(par)", "tv/mobilenet_v3_small")


@pytest.mark.parametrize("name", QUICK)
def test_public_models(name: str) -> None:
    model, batch = ZOO[name].make()
    check(model.train(), batch, REFUSED.get(name, 0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in ZOO if n not in QUICK])
def test_the_zoo(name: str) -> None:
    if name in NOT_TRAINABLE:
        pytest.skip(NOT_TRAINABLE[name])
    model, batch = ZOO[name].make()
    check(model.train(), batch, REFUSED.get(name, 0))


def test_the_sweep_sees_a_change() -> None:
    torch.manual_seed(0)
    model, batch = TokenNet("post_norm").train(), torch.randn(3, 5, 8)
    located = locate(model, batch)
    planner = Planner(located, batch)
    planner.alter("layers.0", located.units()["layers.0"], Alteration(branch_gradient=1.0 + 2**-20))
    plain = run(model, batch, Inert())
    changed = run(model, batch, intercepted(model, planner.plan()))
    assert _same(plain["output 0"], changed["output 0"])
    assert not _same(plain["layers.0.key.weight"], changed["layers.0.key.weight"])
