"""Schedules against closed forms, optimisers against steps written out in float64, recipes against the papers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from oracle.optimizers import State, adamw, clipped, sgd
from skipway import create_model
from skipway.designs._seam import ParameterRule
from skipway.errors import SkipwayError
from skipway.spec import DataSpec, OptimizerSpec, RecipeSpec, ScheduleSpec
from skipway.train.fit import run_spec
from skipway.train.optimizer import build_optimizer, set_rate
from skipway.train.plan import plan_recipe
from skipway.train.recipes import RECIPES, find_recipe
from skipway.train.schedule import multiplier
from train.runs import open_once, tiny

if TYPE_CHECKING:
    from pathlib import Path


def rates(recipe: RecipeSpec) -> list[float]:
    return [recipe.optimizer.lr * multiplier(recipe.schedule, s, recipe.steps) for s in range(recipe.steps)]


# -- schedules


def test_he_et_al_on_cifar() -> None:
    """0.01 for the first 400 of 64,000 iterations, then 0.1, ÷10 at 32,000 and at 48,000 (arXiv 1603.05027)."""
    seen = rates(find_recipe("he2016-cifar"))
    expected = [0.01] * 400 + [0.1] * 31_600 + [0.01] * 16_000 + [0.001] * 16_000
    assert len(seen) == len(expected) == 64_000
    assert max(abs(a - b) / b for a, b in zip(seen, expected, strict=True)) < 1e-12


def test_he_et_al_on_imagenet() -> None:
    recipe = find_recipe("he2016-imagenet")
    epoch = 1_281_167 / 256
    at = {e: 0.1 * multiplier(recipe.schedule, round(e * epoch), recipe.steps) for e in (0, 29.99, 30.01, 59.99, 60.01)}
    assert at == pytest.approx({0: 0.1, 29.99: 0.1, 30.01: 0.01, 59.99: 0.01, 60.01: 0.001})
    assert recipe.batch_size == 256


def test_cosine_with_warmup() -> None:
    schedule = ScheduleSpec(name="cosine", warmup=0.1, final=0.1)
    seen = [multiplier(schedule, s, 100) for s in range(100)]
    assert seen[:10] == pytest.approx([s / 10 for s in range(10)])
    assert seen[10] == 1.0
    assert seen[10:] == pytest.approx([0.1 + 0.45 * (1 + math.cos(math.pi * k / 90)) for k in range(90)])


def test_cosine_is_pytorchs() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.03)
    for step in range(50):
        ours = 0.3 * multiplier(ScheduleSpec(name="cosine", final=0.1), step, 50)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(ours, rel=1e-9)
        optimizer.step()
        theirs.step()


def test_one_cycle() -> None:
    schedule = ScheduleSpec(name="one-cycle", warmup=0.4, warmup_from=0.2)
    assert [multiplier(schedule, s, 10) for s in range(10)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    )


def test_constant_and_steps() -> None:
    assert {multiplier(ScheduleSpec(name="constant"), s, 7) for s in range(7)} == {1.0}
    schedule = ScheduleSpec(name="steps", milestones=(0.3, 0.6), gamma=0.5)
    assert [multiplier(schedule, s, 10) for s in range(10)] == [1] * 3 + [0.5] * 3 + [0.25] * 4


def test_the_rate_of_each_step_is_what_is_logged(tmp_path: Path) -> None:
    spec = tiny(steps=8)
    run = run_spec(spec, tmp_path / "run")
    assert [line["lr"] for line in run.metrics() if "lr" in line] == pytest.approx(rates(spec.recipe))


# -- recipes


def test_recipes_as_published() -> None:
    he = OptimizerSpec(name="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4)
    assert find_recipe("he2016-cifar").optimizer == find_recipe("he2016-imagenet").optimizer == he
    assert find_recipe("he2016-cifar").normalize == "pixel"
    gpt = find_recipe("gpt-small")
    assert (gpt.clip_norm, gpt.optimizer.betas, gpt.optimizer.weight_decay) == (1.0, (0.9, 0.95), 0.1)
    assert all(recipe.name == name and recipe.source for name, recipe in RECIPES.items())


def test_a_recipe_by_few_words() -> None:
    assert plan_recipe(None, DataSpec()) == find_recipe("quick")
    assert plan_recipe(None, DataSpec(name="text")) == find_recipe("gpt-small")
    changed = plan_recipe("quick", DataSpec(), steps=50, batch_size=16, lr=0.3, weight_decay=0.0)
    assert (changed.steps, changed.batch_size) == (50, 16)
    assert changed.optimizer == replace(find_recipe("quick").optimizer, lr=0.3, weight_decay=0.0)
    # Milestones and warm-up scale with the budget.
    short = plan_recipe("he2016-cifar", DataSpec(), steps=640)
    assert rates(short) == pytest.approx([0.01] * 4 + [0.1] * 316 + [0.01] * 160 + [0.001] * 160)


# -- optimisers


CASES: dict[str, OptimizerSpec] = {
    "sgd": OptimizerSpec(lr=0.1, weight_decay=0.01),
    "nesterov": OptimizerSpec(lr=0.1, weight_decay=0.01, nesterov=True),
    "no momentum": OptimizerSpec(lr=0.1, momentum=0.0),
    "adamw": OptimizerSpec(name="adamw", lr=0.01, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-3),
}


def step_of(spec: OptimizerSpec, w: torch.Tensor, g: torch.Tensor, state: State, lr: float) -> Any:
    if spec.name == "adamw":
        return adamw(w, g, state, lr=lr, decay=spec.weight_decay, betas=spec.betas, eps=spec.eps)
    return sgd(w, g, state, lr=lr, decay=spec.weight_decay, momentum=spec.momentum, nesterov=spec.nesterov)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_three_steps_written_out(case: str, fused: bool) -> None:
    spec = CASES[case]
    generator = torch.Generator().manual_seed(0)
    net = nn.Linear(5, 3).double()
    optimizer = build_optimizer(net, spec, fused=fused)
    twins = {p: (p.detach().clone(), {}) for p in net.parameters()}
    for share in (0.25, 1.0, 0.5):
        set_rate(optimizer, share)
        for p in net.parameters():
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            w, state = twins[p]
            twins[p] = step_of(spec, w, p.grad, state, spec.lr * share)
        optimizer.step()
    for p, (w, _) in twins.items():
        torch.testing.assert_close(p.detach(), w, rtol=1e-12, atol=1e-14)


def test_only_matrices_are_decayed() -> None:
    net = create_model("gpt_nano")
    optimizer = build_optimizer(net, OptimizerSpec(name="adamw", weight_decay=0.1, decay="matrices"))
    decay = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert set(decay) == set(net.parameters())
    assert {p.ndim >= 2 for p, value in decay.items() if value == 0.1} == {True}
    assert {p.ndim for p, value in decay.items() if value == 0.0} == {1}
    every = build_optimizer(net, OptimizerSpec(name="adamw", weight_decay=0.1))
    assert {group["weight_decay"] for group in every.param_groups} == {0.1}


def test_a_designs_rule_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    net = create_model("resnet8", in_channels=1)
    first = net.stack.units[0].branches[0].conv1.weight
    rule = ParameterRule(parameters=(first,), lr=0.5, weight_decay=3.0, eps=7.0)
    monkeypatch.setattr(type(net.design), "param_groups", lambda self, units, spec: [rule])
    for name in ("sgd", "adamw"):
        optimizer = build_optimizer(net, OptimizerSpec(name=name, lr=0.2, weight_decay=0.01, eps=1e-4))
        set_rate(optimizer, 0.1)
        one, rest = sorted(optimizer.param_groups, key=lambda group: len(group["params"]))
        assert one["params"] == [first]
        assert (one["lr"], one["weight_decay"]) == pytest.approx((0.2 * 0.5 * 0.1, 0.03))
        assert (rest["lr"], rest["weight_decay"]) == pytest.approx((0.02, 0.01))
        if name == "adamw":
            assert (one["eps"], rest["eps"]) == pytest.approx((7e-4, 1e-4))


def test_frozen_weights_stay(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    net[1].requires_grad_(False)
    before = net[1].weight.clone()
    optimizer = build_optimizer(net, OptimizerSpec())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2
    last = net[3].weight.detach().clone()
    run_spec(tiny("module:Sequential", steps=2), tmp_path / "run", module=net)
    assert torch.equal(net[1].weight, before)
    assert not torch.equal(net[3].weight, last)


def test_nothing_to_train() -> None:
    with pytest.raises(SkipwayError, match="no parameter of the model needs a gradient"):
        build_optimizer(nn.ReLU(), OptimizerSpec())


@pytest.mark.parametrize("most", [0.05, 100.0])
def test_a_whole_run_written_out(most: float, tmp_path: Path) -> None:
    """Three steps of a small net, with clipping and smoothed labels, by hand in float64."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    twin = [p.detach().double() for p in net.parameters()]
    schedule = ScheduleSpec(name="cosine")
    optimizer = OptimizerSpec(lr=0.5, nesterov=True, weight_decay=0.01)
    recipe = RecipeSpec(optimizer=optimizer, schedule=schedule, clip_norm=most, label_smoothing=0.2)
    spec = tiny("module:Sequential", recipe=recipe, steps=3)
    run = run_spec(spec, tmp_path / "run", module=net)
    states: list[State] = [{}] * 4
    batches = open_once(spec.data).train(batch_size=32, seed=0)
    for line, step in zip(run.metrics(), range(3), strict=False):
        x, y = next(batches)
        leaves = [w.clone().requires_grad_() for w in twin]
        w1, b1, w2, b2 = leaves
        logits = torch.tanh(x.double().flatten(1) @ w1.T + b1) @ w2.T + b2
        chance = torch.full((32, 10), 0.02, dtype=torch.float64)
        chance[torch.arange(32), y] += 0.8
        loss = -(chance * F.log_softmax(logits, 1)).sum(1).mean()
        gradients, norm = clipped(list(torch.autograd.grad(loss, leaves)), most)
        lr = 0.5 * 0.5 * (1 + math.cos(math.pi * step / 3))
        moved = [step_of(optimizer, w, g, s, lr) for w, g, s in zip(twin, gradients, states, strict=True)]
        twin, states = [w for w, _ in moved], [s for _, s in moved]
        assert line["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
        assert line["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert (norm > most) == (most == 0.05)
    for p, w in zip(net.parameters(), twin, strict=True):
        torch.testing.assert_close(p.detach().double(), w, rtol=1e-4, atol=1e-6)
