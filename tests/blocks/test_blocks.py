"""Branches by themselves: shapes, slots, forms, ports."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from skipway.blocks import (
    AttentionBlock,
    Block,
    ConvBlock,
    LayerBlock,
    MLPBlock,
    Norm,
    OpaqueBlock,
    activation,
    basic,
    bottleneck,
    dropout,
    last_scale_or_weight,
    weight_layers,
)
from skipway.blocks.opaque import module_ops
from skipway.blocks.shortcut import SubsamplePad
from skipway.errors import SkipwayError, UnknownNameError
from skipway.form import Op

BLOCKS: list[Block] = [
    basic(4, 8, 2),
    bottleneck(4, 2, 2),
    bottleneck(8, 2, 2, stride_on=1),
    LayerBlock(reads=6, writes=5, act="tanh"),
    MLPBlock(reads=6, writes=5, hidden=7, act="relu"),
    AttentionBlock(reads=6, writes=5, width=8, heads=2),
]


def batch(block: Block) -> Tensor:
    return torch.randn(3, block.in_width, 7, 7) if block.layout == "NCHW" else torch.randn(3, 4, block.in_width)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: type(b).__name__)
def test_what_a_plan_says_is_what_is_built(block: Block) -> None:
    norm = Norm(kind="batch" if block.layout == "NCHW" else "layer").part()
    slots = {"start": norm, "end": norm}
    branch = block.build(slots)
    y = branch(batch(block))
    assert y.shape[1 if block.layout == "NCHW" else -1] == block.out_width
    if block.layout == "NCHW":
        assert y.shape[2] == math.ceil(7 / block.stride)
    ops = block.ops(slots, "train")
    assert ops[0] == ops[-1] == norm[0].ops[0]
    weights = [op for op in ops if op.kind == "weight" and op.detail != "attention"]
    assert len(weights) == len(weight_layers(branch))
    assert isinstance(last_scale_or_weight(branch), nn.BatchNorm2d | nn.LayerNorm)
    resized = block.resized(in_width=10, out_width=3)
    assert (resized.in_width, resized.out_width, resized.stride) == (10, 3, 1)
    assert resized.build({})(batch(resized)).shape[1 if block.layout == "NCHW" else -1] == 3


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: type(b).__name__)
def test_slots_that_a_block_does_not_offer(block: Block) -> None:
    with pytest.raises(
        UnknownNameError, match=rf"unknown slot of {type(block).__name__} 'strat'\nexpected: did you mean 'start'"
    ):
        block.build({"strat": ()})


def test_stride_of_a_bottleneck() -> None:
    assert [c.stride for c in bottleneck(8, 2, 2).convs] == [1, 2, 1]
    assert [c.stride for c in bottleneck(8, 2, 2, stride_on=1).convs] == [2, 1, 1]
    assert [c.out_width for c in bottleneck(8, 2).convs] == [2, 2, 8]


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(1, 6), heads=st.sampled_from([1, 2, 4]), causal=st.booleans(), seed=st.integers(0, 2**16),
    scale=st.sampled_from([None, 0.3]),
)  # fmt: skip
def test_attention_against_its_formula(tokens: int, heads: int, causal: bool, seed: int, scale: float | None) -> None:
    torch.manual_seed(seed)
    block = AttentionBlock(reads=6, writes=6, width=8, heads=heads, causal=causal, scale=scale)
    branch = block.build({}).double()
    x = torch.randn(2, tokens, 6, dtype=torch.float64)
    q, k, v = branch.qkv(x).chunk(3, -1)
    outs = []
    for a, b, c in zip(q.chunk(heads, -1), k.chunk(heads, -1), v.chunk(heads, -1), strict=True):
        scores = a @ b.mT * (scale or 1 / math.sqrt(8 // heads))
        if causal:
            scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf)
        outs.append(scores.softmax(-1) @ c)
    torch.testing.assert_close(branch(x), branch.out(torch.cat(outs, -1)))
    # Ports that carry the same tensor say the same as one port.
    torch.testing.assert_close(branch(x, x, x), branch(x))


def test_attention_gives_its_values() -> None:
    block = replace(AttentionBlock(reads=6, writes=6, width=8, heads=2), emit_values=True)
    branch = block.build({})
    x = torch.randn(2, 3, 6)
    out, values = branch(x)
    assert (out.shape, values.shape) == ((2, 3, 6), (2, 2, 3, 4))
    torch.testing.assert_close(values[:, 1], branch.qkv(x)[..., 20:])
    matrices = branch.matrices()
    assert {name: tuple(m.shape) for name, m in matrices.items()} == {
        "q": (8, 6),
        "k": (8, 6),
        "v": (8, 6),
        "out": (6, 8),
    }
    with torch.no_grad():
        matrices["k"].zero_()
    assert branch.qkv.weight[8:16].abs().sum() == 0


@settings(max_examples=40, deadline=None)
@given(stride=st.integers(1, 3), extra=st.integers(-2, 3), side=st.integers(1, 9))
def test_option_a(stride: int, extra: int, side: int) -> None:
    x = torch.randn(2, 4, side, side)
    y = SubsamplePad(stride, extra)(x)
    assert y.shape == (2, 4 + extra, math.ceil(side / stride), math.ceil(side / stride))
    kept = min(4, 4 + extra)
    for i in range(y.shape[2]):
        for j in range(y.shape[3]):
            assert torch.equal(y[:, :kept, i, j], x[:, :kept, i * stride, j * stride])
    assert y[:, kept:].abs().sum() == 0


def test_in_place_activations_only_where_nobody_else_reads() -> None:
    relu, norm = activation("relu"), Norm(kind="batch").part()

    def inplace(slots: dict[str, object]) -> list[bool]:
        branch = basic(4, 4).build(slots)  # type: ignore[arg-type]
        return [m.inplace for m in branch.modules() if isinstance(m, nn.ReLU)]

    assert inplace({"start": relu, "between": norm + relu}) == [False, True]
    assert inplace({"start": norm + relu}) == [True]
    # Dropout hands its input through in eval mode.
    assert inplace({"start": dropout(0.5) + relu}) == [False]


def test_forms_by_mode() -> None:
    block = basic(4, 8, 2)
    slots = {"between": Norm().part() + activation("relu") + dropout(0.3)}
    assert [str(op) for op in block.ops(slots, "train")] == ["Conv3x3/2", "BN", "ReLU", "dropout[0.3]", "Conv3x3"]
    assert [str(op) for op in block.ops(slots, "eval")] == ["Conv3x3/2", "BN", "ReLU", "Conv3x3"]
    assert dropout(0.0) == activation("none") == Norm(kind="none").part() == ()


def test_norms() -> None:
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(Norm(kind="rms").make(8, "NTD")(x), F.rms_norm(x, (8,)))
    assert Norm(kind="layer", eps=1e-6).make(8, "NTD").eps == 1e-6
    with pytest.raises(SkipwayError, match=r"norm 'batch' on layout NTD\nexpected: norm 'batch' on images"):
        Norm(kind="batch").make(8, "NTD")


def test_anybodys_module_as_a_branch() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.Conv2d(6, 9, 1), nn.ReLU()
    )
    block = OpaqueBlock.of(module)
    assert (block.in_width, block.out_width, block.stride, block.layout) == (3, 9, 4, "NCHW")
    assert block.build({}) is module
    assert [str(op) for op in block.ops({}, "eval")] == ["Conv3x3/2", "BN", "Conv1x1", "ReLU"]
    assert module_ops(nn.Linear(2, 2), on_shortcut=True) == (Op("projection", "linear"),)
    attention = OpaqueBlock.of(nn.TransformerEncoderLayer(8, 2))
    assert (attention.in_width, attention.out_width, attention.layout) == (8, 8, "NTD")
    with pytest.raises(SkipwayError, match="a branch that reads 3 and writes 9 channels at stride 4"):
        block.resized(in_width=3, out_width=9)


def test_blocks_without_parts() -> None:
    with pytest.raises(SkipwayError, match="a branch of kind 'token' cannot be split into single layers"):
        MLPBlock(reads=2, writes=2, hidden=2, act="relu").split()
    assert [len(b.convs) for b in bottleneck(4, 2).split() if isinstance(b, ConvBlock)] == [1, 1, 1]
    with pytest.raises(SkipwayError, match="zero_init on a branch without a norm"):
        last_scale_or_weight(nn.ReLU())
