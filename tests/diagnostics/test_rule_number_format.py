"""What 16 bits lose on the stream, and what they only seem to lose."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.ops import StochasticDepth

from skipway.diagnostics.inspect import inspect

RULES = {"fp16-headroom", "bf16-swamping", "stream-dtype"}


class Block(nn.Module):
    def __init__(self, *, gain: float = 1.0, scale: float = 1.0, drop: float = 0.0) -> None:
        super().__init__()
        self.norm, self.linear, self.scale = nn.LayerNorm(16), nn.Linear(16, 16), scale
        self.gain = nn.Parameter(torch.full((16,), gain))
        self.drop = StochasticDepth(drop, "row")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.gain * (self.scale * self.linear(self.norm(x))))


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log()


def net(*blocks: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), *blocks)


def found(model: nn.Module, dtype: torch.dtype = torch.float32) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    findings = inspect(model.to(dtype), torch.randn(4, 6, 16, dtype=dtype)).findings
    return [(f.rule, f.path) for f in findings if f.rule in RULES]


@pytest.mark.parametrize("drop", [0.0, 0.2])
def test_layer_scale_as_it_starts_is_not_swamped_but_a_constant_is(drop: float) -> None:
    assert found(net(*[Block(gain=1e-6, drop=drop) for _ in range(4)]), torch.bfloat16) == []
    scaled = net(*[Block(scale=1e-4, drop=drop) for _ in range(4)])
    assert found(scaled, torch.bfloat16) == [("bf16-swamping", "1")]
    assert found(scaled, torch.float32) == []


def test_not_a_number_is_no_lack_of_headroom() -> None:
    assert found(net(Block(), Log(), Block()), torch.float16) == []


def test_under_autocast_a_narrowed_stream_is_told_and_a_widened_one_is_not() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert found(net(*[Block() for _ in range(4)])) == []  # bfloat16 behind the stem, float32 behind the gain
        assert found(net(Block(), nn.Linear(16, 16), Block())) == []
        assert found(net(Block(), Block(), Cast(torch.bfloat16), Block())) == [("stream-dtype", "4")]


def test_cast_between_units_is_told() -> None:
    model = net(Block(), Block(), Cast(torch.float64), Block().double())
    findings = inspect(model, torch.randn(4, 6, 16)).findings
    assert [(f.rule, f.path) for f in findings if f.rule in RULES] == [("stream-dtype", "4")]
