"""A proof could have failed: wrong formulas miss the bound by far, and an equation is what its module computes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from skipway.diagnostics.inspect import inspect
from skipway.form import Op, UnitForm
from skipway.units.prove import BOUND_EPS, WRONG
from units.case import WIDTH, Block, Stack
from zoo.mistakes import mistakes
from zoo.models import SAMPLE, ZOO

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries' deprecations

FAR = 100  # a wrong formula misses the bound by at least this factor


# SkipInit starts every branch at a gain of exactly 0, where a wrong factor on the branch is no other formula.
ZERO_SCALED = {"timm/dm_nfnet_f0"}


def _check(name: str) -> None:
    found = mistakes(name)
    assert found.undecided == []
    assert found.right <= BOUND_EPS
    if ZOO[name].truth.units:
        assert found.smallest.keys() == set(WRONG) - ({"s"} if name in ZERO_SCALED else set())
    for kind, (error, unit) in found.smallest.items():
        assert error >= FAR * BOUND_EPS, f"wrong {kind} of unit {unit}"


@pytest.mark.parametrize("name", SAMPLE)
def test_wrong_formulas_miss_on_public_models(name: str) -> None:
    _check(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [n for n in ZOO if n not in SAMPLE])
def test_wrong_formulas_miss_on_the_rest(name: str) -> None:
    _check(name)


# The equation against the module, with no machinery of the product between

JOINS: dict[str, Callable[[Block, Tensor], Tensor]] = {
    "identity": lambda b, x: x + b.branch(x),
    "ReLU after": lambda b, x: torch.relu(x + b.branch(x)),
    "post-norm": lambda b, x: b.norm(x + b.branch(x)),
    "alpha": lambda b, x: torch.add(x, b.branch(x), alpha=0.5),
    "minus": lambda b, x: x - b.branch(x),
    "half each": lambda b, x: torch.stack([x, b.branch(x)]).mean(0),
    "scaled shortcut": lambda b, x: 0.7 * x + b.branch(x),
    "norm on the shortcut": lambda b, x: b.norm(x) + b.branch(x),
    "gain": lambda b, x: x + b.gain * b.branch(x),
    "gain on the shortcut": lambda b, x: torch.relu(b.gain * x + b.branch(x)),
    "learned scalar": lambda b, x: x + b.branch(x) * b.gain[0],
    "norm at the end": lambda b, x: x + b.norm(b.branch(x)),
    "ReLU at the end": lambda b, x: x + torch.relu(b.branch(x)),
    "highway": lambda b, x: torch.lerp(x, b.branch(x), torch.sigmoid(b.gate(x))),
    "number in lerp": lambda b, x: torch.lerp(x, b.branch(x), 0.25),
}


def _apply(ops: tuple[Op, ...], value: Tensor, block: Block, x: Tensor) -> Tensor:
    """Run operations of a formula, their parameters taken from the block by hand."""
    for op in ops:
        match op.kind, op.detail:
            case "norm", "layer":
                value = block.norm(value)
            case "activation", "relu":
                value = value.clamp_min(0)
            case "scale", float(number):
                value = number * value
            case "scale", "learned vector":
                value = block.gain * value
            case "scale", "learned scalar":
                value = block.gain[0] * value
            case "gate", side:
                g = torch.sigmoid(block.gate(x))
                value = value * (g if side == "g" else 1 - g)
            case _:
                raise AssertionError(f"no such operation in this block: {op}")
    return value


def _computed(form: UnitForm, block: Block, x: Tensor, noise: Tensor) -> Tensor:
    """f(h(x) ⊕ s·R), where the branch's last weight gave R."""
    last = max(k for k, op in enumerate(form.branch) if op.kind == "weight")
    h = _apply(form.shortcut, x, block, x)
    branch = _apply(form.branch[last + 1 :], noise, block, x)
    g = torch.sigmoid(block.gate(x))
    merged = {"add": h + branch, "mean": (h + branch) / 2, "lerp": (1 - g) * h + g * branch}[form.merge]
    return _apply(form.after, merged, block, x)


def _error(form: UnitForm, block: Block, x: Tensor, noise: Tensor) -> float:
    """Relative error in eps of a formula, against the block run with its branch's output replaced by a hook."""
    hook = block.branch.register_forward_hook(lambda module, args, output: noise.clone())
    actual = block(x)
    hook.remove()
    predicted = _computed(form, block, x, noise)
    return float((actual - predicted).norm() / actual.norm()) / torch.finfo(x.dtype).eps


def _altered(form: UnitForm) -> list[UnitForm]:
    """Formulas that differ in one place."""
    halved = (*form.shortcut, Op("scale", 0.95))
    other = () if form.after else (Op("activation", "relu"),)
    changed = [
        replace(form, shortcut=halved),
        replace(form, branch=(*form.branch, Op("scale", 0.9))),
        replace(form, after=other),
    ]
    return changed + ([replace(form, shortcut=form.shortcut[:-1])] if form.shortcut else [])


@pytest.mark.parametrize("what", list(JOINS))
def test_the_equation_is_what_the_module_computes(what: str) -> None:
    torch.manual_seed(0)
    stack = Stack(JOINS[what]).double()
    with torch.no_grad():
        for block in stack.blocks:
            block.norm.weight.uniform_(0.5, 2)
            block.gain.uniform_(0.5, 2)
    units = inspect(stack, torch.randn(4, WIDTH, dtype=torch.float64), structure_only=True).units
    assert len(units) == 3
    for unit, block in zip(units, stack.blocks, strict=True):
        x, noise = torch.randn(2, 4, WIDTH, dtype=torch.float64)
        assert _error(unit.form, block, x, noise) <= BOUND_EPS
        for wrong in _altered(unit.form):
            assert _error(wrong, block, x, noise) >= FAR * BOUND_EPS, wrong.equation()
