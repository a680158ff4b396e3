"""Fixes at the places where they can be made: branches drawn anew, values scaled, shortcuts that can be identities."""

# Shapes: N samples, T tokens, D width, C channels, H height, W width of an image.
from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

import skipway
from skipway.study.proving.reinitialise import reset_branches, scale_values
from skipway.study.proving.trial import TrialSettings
from skipway.units.locate import locate

if TYPE_CHECKING:
    from collections.abc import Callable

D = 12
SHORT = TrialSettings(steps=2, batch_size=4, seeds=2)


class Conv1D(nn.Module):
    """Weights (in, out), as in Hugging Face's GPT-2: neither has it a method to draw them anew."""

    def __init__(self, out: int, given: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.3 * torch.randn(given, out)), nn.Parameter(torch.randn(out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class Attention(nn.Module):
    """Query, key and value by one matrix, pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), Conv1D(3 * D, D), Conv1D(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).split(D, -1)
        return x + self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


def gpt2(kind: str = "eager") -> tuple[nn.Module, Tensor]:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_embd=D, n_layer=3, n_head=2, n_positions=16, vocab_size=20, bos_token_id=0, eos_token_id=0,
        attn_implementation=kind,
    )  # fmt: skip
    return GPT2Model(config), torch.randint(0, 20, (2, 6))


def encoder() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(D, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(2, 5, D)


@pytest.mark.parametrize(
    ("build", "matrices"),
    [
        (encoder, ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"]),
        (gpt2, ["attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"]),
    ],
)
def test_copied_layers_differ_when_drawn_anew(
    build: Callable[[], tuple[nn.Module, Tensor]], matrices: list[str]
) -> None:
    torch.manual_seed(0)
    model, batch = build()
    layers = model.h if hasattr(model, "h") else model.layers
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("c_attn.bias"):
                parameter.normal_()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    located = locate(model, batch)
    assert reset_branches(located, located.units(), seed=1) >= 3 * len(matrices)
    for name in matrices:
        values = [layer.get_parameter(name) for layer in layers]
        assert not torch.equal(values[0], values[1]), name
        assert not torch.equal(values[1], values[2]), name
    after = model.state_dict()
    for name in (n for n in before if ".c_" in n):  # of modules that cannot draw their own
        assert torch.equal(after[name], before[name]) == name.endswith("bias"), name
        if name.endswith("weight"):
            assert after[name].std() == pytest.approx(float(before[name].std()), rel=0.3), name
    again, _ = build()
    again.load_state_dict(before)
    reset_branches(locate(again, batch), located.units(), seed=1)
    assert all(torch.equal(v, after[k]) for k, v in again.state_dict().items())


class Gained(nn.Module):
    """A layer scale of the shape of an image's channels, a constant matrix and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.gain = nn.Parameter(torch.rand(4, 1, 1))
        self.ones = nn.Parameter(torch.ones(6, 6))
        self.frozen = nn.Parameter(torch.rand(6, 6), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.conv(x) * self.ones * self.frozen


def test_gains_constants_and_what_is_frozen_stay() -> None:
    model = nn.Sequential(Gained(), Gained())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert reset_branches(locate(model, torch.randn(2, 4, 6, 6)), ["0"], seed=1) == 1
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"0.conv.weight", "0.conv.bias"}


def test_deepnorm_scales_the_values_of_weights_that_lie_the_other_way() -> None:
    """By hand: attention with its values, and what comes of them, scaled by β each: the branch by β² without biases."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(Attention(), Attention()), torch.randn(2, 4, D)
    with torch.no_grad():
        for unit in model:
            unit.out.bias.zero_()
            unit.qkv.bias.zero_()
        branch = model[0](batch) - batch
        before = {k: v.clone() for k, v in model.state_dict().items()}
        scale_values(locate(model, batch), ["0"], 0.5)
        torch.testing.assert_close(model[0](batch) - batch, 0.25 * branch)
    after = model.state_dict()
    assert torch.equal(after["0.qkv.weight"][:, : 2 * D], before["0.qkv.weight"][:, : 2 * D])
    assert torch.equal(after["0.qkv.weight"][:, 2 * D :], 0.5 * before["0.qkv.weight"][:, 2 * D :])
    changed = {k for k in before if not torch.equal(after[k], before[k])}
    assert changed == {"0.qkv.weight", "0.out.weight"}


@pytest.mark.parametrize("training", [False, True])  # with dropout of the scores or without
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_deepnorm_scales_the_values_of_gpt2(kind: str, training: bool) -> None:
    model, batch = gpt2(kind)
    model.train(training)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    scale_values(locate(model, batch), ["h.1.attn"], 0.5)
    after = model.state_dict()
    name = "h.1.attn.c_attn.weight"
    assert torch.equal(after[name][:, : 2 * D], before[name][:, : 2 * D])
    assert torch.equal(after[name][:, 2 * D :], 0.5 * before[name][:, 2 * D :])


class Projecting(nn.Module):
    """A unit with a projection on its shortcut."""

    def __init__(self, given: int, out: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(given, out, 3, padding=1), nn.BatchNorm2d(out))
        self.projection = nn.Conv2d(given, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.projection(x))


class Net(nn.Module):
    """Units that need their projection where they widen, and not elsewhere; the pool lies between two units."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, widths[0], 3, padding=1), nn.Linear(widths[-1], 10)
        self.units = nn.ModuleList(Projecting(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for k, unit in enumerate(self.units):
            x = unit(nn.functional.max_pool2d(x, 2) if k == 2 else x)
        return self.head(x.mean((2, 3)))


def test_units_whose_shortcut_cannot_be_an_identity_are_left_out() -> None:
    batch = torch.randn(4, 1, 8, 8)
    inspection = skipway.inspect(Net(4, 8, 8, 8), batch)
    assert "projected-shortcut" in {f.rule for f in inspection.findings}
    proof = skipway.prove(inspection, "projected-shortcut", model=lambda: Net(4, 8, 8, 8), batch=batch, settings=SHORT)
    assert [a.name for a in proof.arms] == ["as it is", "identity shortcuts"]
    assert proof.notes == ("identity shortcuts: not at units.0, where that cannot be",)


def test_no_shortcut_can_be_an_identity() -> None:
    batch = torch.randn(4, 1, 8, 8)
    inspection = skipway.inspect(Net(4, 6, 8), batch)
    with pytest.raises(skipway.SkipwayError) as error:
        skipway.prove(inspection, "projected-shortcut", model=Net(4, 6, 8), batch=batch, settings=SHORT)
    assert str(error.value) == (
        "identity shortcuts at none of 2 units: the shortcut of unit 'units.0' cannot be made identity: "
        "x is (4, 4, 8, 8), h(x) is (4, 6, 8, 8)\n"
        "expected: a unit whose x has the shape of h(x)\n"
        "try: the changed model as fix="
    )
