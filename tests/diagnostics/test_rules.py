"""Each rule convicts faulty programs of unlike architectures and stays silent on their healthy twins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipway.diagnostics.inspect import inspect
from skipway.diagnostics.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable

D, C = 16, 8


class Stack(nn.Module):
    """A stem, equal blocks, a head."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class TanhLayer(nn.Module):
    def __init__(self, *, shortcut: bool) -> None:
        super().__init__()
        self.linear, self.shortcut = nn.Linear(D, D), shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        return x + y if self.shortcut else y


class ConvBlock(nn.Module):
    def __init__(self, *, shortcut: bool, norm: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(C, C, 3, padding=1) for _ in range(2))
        for conv in (self.first, self.second):
            nn.init.kaiming_normal_(conv.weight)
        self.norm = nn.BatchNorm2d(C) if norm else nn.Identity()
        self.shortcut, self.scale = shortcut, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.scale * self.second(F.relu(self.norm(self.first(F.relu(x)))))
        return x + y if self.shortcut else y


class TokenBlock(nn.Module):
    def __init__(self, *, shortcut: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + y if self.shortcut else y


def tanh_net(depth: int, *, shortcut: bool) -> tuple[nn.Module, torch.Tensor]:
    blocks: list[nn.Module] = [TanhLayer(shortcut=shortcut) for _ in range(depth)]
    return Stack(nn.Identity(), blocks, nn.Identity()), torch.randn(8, D)


def conv_net(shortcuts: list[bool], *, norm: bool = True, scale: float = 1.0) -> tuple[nn.Module, torch.Tensor]:
    blocks: list[nn.Module] = [ConvBlock(shortcut=s, norm=norm, scale=scale) for s in shortcuts]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(C, 10))
    return Stack(nn.Conv2d(3, C, 3, padding=1), blocks, head), torch.randn(4, 3, 16, 16)


def token_net(shortcuts: list[bool]) -> tuple[nn.Module, torch.Tensor]:
    blocks: list[nn.Module] = [TokenBlock(shortcut=s) for s in shortcuts]
    return Stack(nn.Linear(D, D), blocks, nn.LayerNorm(D)), torch.randn(4, 6, D)


def rules_of(model: nn.Module, batch: torch.Tensor) -> dict[str, list[str]]:
    """Paths by rule, of errors and warnings."""
    found: dict[str, list[str]] = {}
    for finding in inspect(model, batch).findings:
        if finding.severity != "info":
            found.setdefault(finding.rule, []).append(finding.path)
    return found


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_plain_tanh_stack_is_convicted_and_its_residual_twin_is_not() -> None:
    assert set(rules_of(*tanh_net(40, shortcut=False))) == {"gradient-vanishing", "missing-shortcut"}
    assert rules_of(*tanh_net(40, shortcut=True)) == {}


def test_shallow_plain_stack_is_left_alone() -> None:
    assert rules_of(*tanh_net(4, shortcut=False)) == {}


def test_plain_conv_stack_without_norm_and_with_small_branches_vanishes() -> None:
    found = rules_of(*conv_net([False] * 14, norm=False, scale=0.3))
    assert set(found) == {"gradient-vanishing", "missing-shortcut"}
    assert rules_of(*conv_net([True] * 14, norm=False, scale=0.3)) == {}


def test_unnormalised_branches_at_scale_one_explode_and_small_ones_do_not() -> None:
    assert "gradient-exploding" in rules_of(*conv_net([True] * 40, norm=False))
    assert rules_of(*conv_net([True] * 40, norm=False, scale=0.1)) == {}


def test_exploding_gradient_of_a_scaled_shortcut_on_tokens() -> None:
    class Growing(TokenBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1.5 * x + self.down(F.gelu(self.up(self.norm(x))))

    blocks: list[nn.Module] = [Growing(shortcut=True) for _ in range(30)]
    model = Stack(nn.Linear(D, D), blocks, nn.Identity())
    assert "gradient-exploding" in rules_of(model, torch.randn(4, 6, D))


@pytest.mark.parametrize("net", [conv_net, token_net])
def test_the_block_without_a_shortcut_among_equals_is_named(net: object) -> None:
    shortcuts = [True] * 6
    assert "missing-shortcut" not in rules_of(*net(shortcuts))  # type: ignore[operator]
    shortcuts[3] = False
    assert rules_of(*net(shortcuts))["missing-shortcut"] == ["blocks.3"]  # type: ignore[operator]


def test_a_block_that_changes_its_shape_is_not_blamed() -> None:
    torchvision = pytest.importorskip("torchvision")
    found = rules_of(torchvision.models.mobilenet_v2(weights=None).train(), torch.randn(2, 3, 64, 64))
    assert "missing-shortcut" not in found


@pytest.mark.parametrize("layout", ["conv", "token"])
def test_first_operation_that_made_a_nan_is_named(layout: str) -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x)  # NaN for what is negative

    model, batch = conv_net([True] * 4) if layout == "conv" else token_net([True] * 4)
    model.blocks.insert(2, Bad())
    (finding,) = [f for f in inspect(model, batch).findings if f.rule == "non-finite"]
    assert (finding.severity, finding.path) == ("error", "blocks.2")
    assert finding.evidence["operation"] == "log"
    assert finding.evidence["value"] == "NaN"


def test_parameter_that_is_not_finite_is_named() -> None:
    model, batch = token_net([True] * 4)
    with torch.no_grad():
        model.blocks[1].up.weight[0, 0] = float("inf")
    (finding,) = [f for f in inspect(model, batch).findings if f.rule == "non-finite"]
    assert "blocks.1.up.weight" in str(finding.evidence["operation"])


def test_masks_of_minus_infinity_are_no_fault() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
            scores = q @ k.mT
            mask = torch.full_like(scores, float("-inf")).triu(1)
            return x + self.out((scores + mask).softmax(-1) @ v)

    model = Stack(nn.Linear(D, D), [Masked() for _ in range(4)], nn.LayerNorm(D))
    found = inspect(model, torch.randn(2, 6, D))
    assert len(found.units) == 4
    assert found.findings == []


def test_overflow_in_half_precision_names_its_module() -> None:
    class Loud(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 60000.0 * 60000.0

    model, batch = token_net([True] * 4)
    model.blocks.insert(1, Loud())
    (finding,) = [f for f in inspect(model.half(), batch.half()).findings if f.rule == "non-finite"]
    assert (finding.path, finding.evidence["value"]) == ("blocks.1", "inf")


def test_gradient_alone_that_is_not_finite_is_named_with_its_function() -> None:
    class Root(TokenBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.up(self.norm(x))
            return x + self.down(h + (h - h.detach()).abs().sqrt())  # 0 · ∞ in backward

    blocks: list[nn.Module] = [TokenBlock(shortcut=True), TokenBlock(shortcut=True), Root(shortcut=True)]
    blocks += [TokenBlock(shortcut=True)]
    (finding,) = [
        f
        for f in inspect(Stack(nn.Linear(D, D), blocks, nn.LayerNorm(D)), torch.randn(4, 6, D)).findings
        if f.rule == "non-finite"
    ]
    assert (finding.severity, finding.path) == ("error", "blocks.2")
    assert finding.evidence["operation"] in {"SqrtBackward0", "AbsBackward0"}
    assert "epsilon" in finding.fix or "eps" in finding.fix


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda x: x / (x - x), "divide by what cannot be 0"),
        (lambda x: (x * 100).exp(), "subtract the largest value before exp"),
        (lambda x: x * 1e30 * 1e30, "an overflow"),
        (lambda x: (-x.abs() - 1).sqrt(), "keep the root's operand above 0"),
    ],
)
def test_fix_of_what_is_not_finite_is_by_cause(make: Callable[[torch.Tensor], torch.Tensor], fix: str) -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return make(x)

    model, batch = token_net([True] * 4)
    model.blocks.insert(2, Bad())
    (finding,) = [f for f in inspect(model, batch).findings if f.rule == "non-finite"]
    assert finding.path == "blocks.2"
    assert fix in finding.fix


def test_decay_says_where_it_breaks() -> None:
    class Squeezed(TokenBlock):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (1e-2 if self.tight else 0.7) * x + self.down(F.gelu(self.up(self.norm(x)))) * 1e-3

    blocks: list[nn.Module] = [Squeezed(shortcut=True) for _ in range(20)]
    for k, block in enumerate(blocks):
        block.tight = k == 7
    found = inspect(Stack(nn.Linear(D, D), blocks, nn.Identity()), torch.randn(4, 6, D)).findings
    (finding,) = [f for f in found if f.rule == "gradient-vanishing"]
    assert finding.evidence["steepest_at"] == "blocks.7"
    assert finding.evidence["steepest_factor"] == pytest.approx(1e-2, rel=0.2)
    assert len(str(finding.evidence["curve"]).split()) == 7


def test_every_rule_explains_itself() -> None:
    assert {"gradient-vanishing", "gradient-exploding", "missing-shortcut", "non-finite"} <= set(RULES)
    for name in RULES:
        rule = RULES[name]
        assert rule.id == name
        assert all((rule.summary, rule.explanation, rule.fix, rule.source))
