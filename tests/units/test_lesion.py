"""Lesions against nets edited by hand and against weights loaded by hand; what is left behind; what is said.

Shapes: N samples, C channels, H and W image, T tokens, D width.
"""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipway
from skipway.errors import SkipwayError, UnknownNameError
from skipway.units.lesion.record import Lesion
from skipway.units.lesion.swap import kendall

if TYPE_CHECKING:
    from collections.abc import Callable


def first(output: Any) -> Tensor:
    """A number that depends on all of the output."""
    out = output if isinstance(output, Tensor) else output[0]
    return (out.double() * torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).view(out.shape)).sum()


def flat(output: Any) -> Tensor:
    """All numbers of an output in one vector."""
    return output.flatten() if isinstance(output, Tensor) else torch.cat([t.flatten() for t in output.values()])


def untrained(model: nn.Module) -> nn.Module:
    """Norms with statistics and weights of their own, so that no unit is trivial; eval mode."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(0.2 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


# ---- models, and the same without a unit, by hand


def resnet18() -> tuple[nn.Module, Any, str, Callable[[nn.Module], None]]:
    from torchvision.models import resnet18 as build

    def edit(model: nn.Module) -> None:
        block = model.layer2[0]
        block.forward = lambda x: F.relu(block.downsample(x))

    return build(num_classes=7), torch.randn(2, 3, 64, 64), "layer2.0", edit


def encoder() -> tuple[nn.Module, Any, str, Callable[[nn.Module], None]]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def edit(model: nn.Module) -> None:
        one = model.layers[1]
        one.forward = lambda x, *_, **__: x + one._ff_block(one.norm2(x))

    return model, torch.randn(2, 5, 16), "layers.1.self_attn", edit


def vit() -> tuple[nn.Module, Any, str, Callable[[nn.Module], None]]:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", depth=3, img_size=32, num_classes=5)

    def edit(model: nn.Module) -> None:
        block = model.blocks[1]
        block.forward = lambda x, *_, **__: x + block.attn(block.norm1(x))

    return model, torch.randn(2, 3, 32, 32), "blocks.1.mlp", edit


def bert() -> tuple[nn.Module, Any, str, Callable[[nn.Module], None]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32
    )

    def edit(model: nn.Module) -> None:
        output = model.encoder.layer[1].output
        output.forward = lambda _hidden, x: output.LayerNorm(x)

    ids = torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(1))
    return transformers.BertModel(config), {"input_ids": ids}, "encoder.layer.1", edit


@pytest.mark.parametrize("build", [resnet18, encoder, vit, bert])
def test_a_deleted_unit_equals_the_net_edited_by_hand(build: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, batch, path, edit = build()
    untrained(model)
    result = skipway.lesion(model, batch, first)
    edited = copy.deepcopy(model)
    edit(edited)
    with torch.no_grad():
        call = (lambda m: m(**batch)) if isinstance(batch, dict) else (lambda m: m(batch))
        whole, without = float(first(call(model))), float(first(call(edited)))
        outputs = [flat(call(model)), flat(call(edited))]
    assert result.baseline == pytest.approx(whole, rel=1e-6)
    assert result.each[path].value == pytest.approx(without, rel=1e-6, abs=1e-6)
    assert abs(without - whole) > 1e-3
    change = skipway.lesion(model, batch, delete=[path])
    by_hand = float((outputs[1] - outputs[0]).norm() / outputs[0].norm())
    assert change.baseline == 0
    assert change.runs[0].change == pytest.approx(by_hand, rel=1e-5)


def test_several_together() -> None:
    torch.manual_seed(0)
    model, batch, _, _ = resnet18()
    untrained(model)
    edited = copy.deepcopy(model)
    for block in (edited.layer1[0], edited.layer3[1]):
        block.forward = F.relu
    with torch.no_grad():
        expected = float(first(edited(batch)))
    found = skipway.lesion(model, batch, first, delete=["layer3.1", "layer1.0"])
    assert found.runs[0].units == ("layer1.0", "layer3.1")
    assert found.runs[0].value == pytest.approx(expected, rel=1e-6)


# ---- swaps


@pytest.mark.parametrize("build", [resnet18, encoder])
def test_swapped_units_equal_weights_loaded_by_hand(build: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, batch, _, _ = build()
    if build is resnet18:
        from torchvision.models import resnet18 as larger

        model = larger(num_classes=7)
        model.layer1.append(copy.deepcopy(model.layer1[1]))
        pair, whole = ("layer1.0", "layer1.2"), ("layer1.0.", "layer1.2.")
    else:
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        pair, whole = None, ("layers.0.", "layers.2.")
    untrained(model)
    if pair is None:  # both units of a layer, one pair after the other
        found = skipway.lesion(model, batch, first, delete=None, blocks="auto", swap=[("layers.0", "layers.2")])
    else:
        for tensor in model.layer1[2].state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1.3).add_(0.01)
        found = skipway.lesion(model, batch, first, delete=None, swap=[pair])
    state = model.state_dict()
    other = dict((whole, whole[::-1]))
    swapped = {}
    for name, tensor in state.items():
        start = next((s for s in whole if name.startswith(s)), None)
        swapped[name] = state[other[start] + name.removeprefix(start)] if start else tensor
    loaded = copy.deepcopy(model)
    loaded.load_state_dict(swapped)
    with torch.no_grad():
        before, expected = float(first(model(batch))), float(first(loaded(batch)))
    assert found.baseline == pytest.approx(before, rel=1e-6)
    assert found.runs[0].value == pytest.approx(expected, rel=1e-6)
    assert abs(before - expected) > 1e-3


def test_kendall_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for seed in range(5):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed)).tolist()
        assert kendall(order) == pytest.approx(float(stats.kendalltau(range(9), order)[0]))


def test_random_swaps_are_repeatable_and_keep_to_structure() -> None:
    model = untrained(skipway.create_model("resnet20"))
    found = [skipway.lesion(model, model.dummy_input(2), first, delete=None, swap=[1, 4], draws=3) for _ in range(2)]
    assert {k: len(v) for k, v in found[0].reordered.items()} == {1: 3, 4: 3}
    assert [r.units for r in found[0].runs] == [r.units for r in found[1].runs]
    assert all(r.kendall <= 1 for r in found[0].runs)
    changing = {u.path for u in found[0].units if u.changes_shape}
    assert changing
    assert not any(changing & set(r.units) for r in found[0].runs)


# ---- our own nets


@pytest.mark.parametrize("name", ["resnet20@preact", "plain20", "gpt_nano", "resnet20@highway"])
def test_the_same_with_the_prefix_reused(name: str) -> None:
    torch.manual_seed(0)
    model = untrained(skipway.create_model(name))
    batch = model.dummy_input(2)
    blocks = "auto" if name.startswith("plain") else None
    options: dict[str, Any] = {"delete": ["each", 2], "swap": True, "draws": 3, "blocks": blocks}
    fast, slow = (skipway.lesion(model, batch, first, reuse=r, **options) for r in (True, False))
    assert (fast.reused, slow.reused) == (True, False)
    assert fast.runs == slow.runs
    assert fast.units == slow.units
    assert fast.forwards < 0.8 * slow.forwards


def test_deleting_each_costs_half() -> None:
    model = skipway.create_model("resnet56@preact").eval()
    ran = []
    for unit in model.stack.units:
        unit.branches[0].register_forward_hook(lambda *_: ran.append(1))
    found = skipway.lesion(model, torch.randn(2, 3, 32, 32), draws=1)
    units = len(found.units)
    # The baseline, and for unit k all from k on; recording and proving take a few whole runs more.
    assert found.forwards == pytest.approx(1 + (units + 1) / 2)
    assert len(ran) <= units * (1 + 6) + units * (units + 1) / 2


def test_plain_blocks_equal_the_net_without_them() -> None:
    torch.manual_seed(0)
    model = untrained(skipway.create_model("plain20"))
    batch = model.dummy_input(2)
    found = skipway.lesion(model, batch, first, blocks="auto")
    kept = {u.path: u.kept for u in found.units if u.kept}
    assert kept == {
        "stack.units.3": "it changes the shape, (2, 16, 32, 32) to (2, 32, 16, 16)",
        "stack.units.6": "it changes the shape, (2, 32, 16, 16) to (2, 64, 8, 8)",
    }
    assert len(found.each) == 7
    without = copy.deepcopy(model)
    without.stack.units = nn.ModuleList([u for i, u in enumerate(without.stack.units) if i != 4])
    with torch.no_grad():
        assert found.each["stack.units.4"].value == pytest.approx(float(first(without(batch))), rel=1e-6)


def test_within_a_what_if_run() -> None:
    model = untrained(skipway.create_model("resnet20"))
    batch = model.dummy_input(2)
    with skipway.what_if(model, {"stack.units.0": skipway.Alteration(branch=0.0)}):
        found = skipway.lesion(model, batch, first, delete=["stack.units.4"])
    together = skipway.lesion(model, batch, first, delete=["stack.units.0", "stack.units.4"])
    assert found.runs[0].value == together.runs[0].value
    assert not found.reused


def test_a_factor_cannot_be_deleted() -> None:
    model = skipway.create_model("resnet20@multiply")
    with pytest.raises(SkipwayError, match=r"none of the 9 units can be deleted; 'stack.units.0': it multiplies"):
        skipway.lesion(model, model.dummy_input(2))


# ---- metrics


def test_metrics_over_labelled_batches_by_hand() -> None:
    torch.manual_seed(0)
    model = untrained(skipway.create_model("resnet8"))
    data = [(torch.randn(n, 3, 32, 32), torch.randint(0, 10, (n,))) for n in (5, 3)]
    error = skipway.lesion(model, data=data, delete=None)
    mean = skipway.lesion(model, data=iter(data), loss=F.cross_entropy, delete=None)
    with torch.no_grad():
        logits = torch.cat([model(x) for x, _ in data])
    targets = torch.cat([y for _, y in data])
    assert error.baseline == pytest.approx(100 * float((logits.argmax(1) != targets).double().mean()))
    assert mean.baseline == pytest.approx(float(F.cross_entropy(logits, targets)), rel=1e-5)
    assert (error.samples, error.unit, mean.metric) == (8, "%", "loss cross_entropy(output, targets)")
    assert skipway.lesion(model, data=data, batches=1, delete=None).samples == 5


def test_block_influence_by_hand() -> None:
    torch.manual_seed(0)
    model, batch, _, _ = resnet18()
    untrained(model)
    streams: dict[str, tuple[Tensor, Tensor]] = {}
    handles = [
        model.layer1[1].register_forward_hook(lambda _m, i, o: streams.__setitem__("layer1.1", (i[0].clone(), o)))
    ]
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    found = {u.path: u for u in skipway.lesion(model, batch, "influence").units}
    x, y = streams["layer1.1"]
    expected = 1 - float(F.cosine_similarity(x.double(), y.double(), dim=1).mean())
    assert found["layer1.1"].influence == pytest.approx(expected, abs=1e-5)
    assert (found["layer2.0"].influence, found["layer2.0"].changes_shape) == (None, True)


def test_block_influence_of_tokens_by_hand() -> None:
    torch.manual_seed(0)
    model = untrained(skipway.create_model("gpt_nano"))
    batch = model.dummy_input(2)
    streams: list[tuple[Tensor, Tensor]] = []
    handle = model.stack.units[3].register_forward_hook(lambda _m, i, o: streams.append((i[0].clone(), o.clone())))
    with torch.no_grad():
        model(batch)
    handle.remove()
    expected = 1 - float(F.cosine_similarity(*streams[0], dim=-1).mean())
    assert skipway.lesion(model, batch, "influence").units[3].influence == pytest.approx(expected, abs=1e-5)


class Convolving(nn.Module):
    """x' = x + F(x), F a convolution over the last dimensions; `turned`: of a stream that has its channels last."""

    def __init__(self, convolution: nn.Module, *, turned: bool) -> None:
        super().__init__()
        self.convolution, self.turned = convolution, turned

    def forward(self, x: Tensor) -> Tensor:
        if self.turned:
            return x + self.convolution(x.movedim(-1, 1)).movedim(1, -1)
        return x + self.convolution(x)


@pytest.mark.parametrize(
    ("blocks", "turned", "dims"),
    [(blocks, turned, dims) for blocks in (None, ["1", "2"]) for turned in (False, True) for dims in (1, 2, 3)
     if not (blocks and turned and dims == 2)],  # blocks on four dimensions count as images (N,C,H,W)
)  # fmt: skip
def test_block_influence_over_channels_by_hand(blocks: list[str] | None, turned: bool, dims: int) -> None:
    torch.manual_seed(0)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    units = [Convolving(kind(6, 6, 3, padding=1), turned=turned) for _ in range(2)]
    model, batch = nn.Sequential(nn.Hardtanh(-9, 9), *units).eval(), torch.randn(2, 6, *(3, 4, 5)[:dims])
    if turned:
        batch = batch.movedim(1, -1)
    with torch.no_grad():
        x = units[0](batch)
        expected = 1 - float(F.cosine_similarity(x, units[1](x), dim=-1 if turned else 1).mean())
    found = {u.path: u.influence for u in skipway.lesion(model, batch, "influence", blocks=blocks).units}
    assert found["2"] == pytest.approx(expected, abs=1e-5)


def test_targets_to_be_ignored_count_for_nothing() -> None:
    torch.manual_seed(0)
    model = untrained(skipway.create_model("gpt_nano"))
    ids = model.dummy_input(3)
    targets = torch.randint(0, 50, ids.shape)
    with torch.no_grad():
        said = model(ids).argmax(-1)
    targets[0] = said[0]  # some are right
    targets[:, :4] = -100
    found = skipway.lesion(model, data=[(ids[:2], targets[:2]), (ids[2:], targets[2:])], delete=None)
    assert found.baseline == pytest.approx(100 * float((said != targets)[:, 4:].double().mean()))
    nothing = skipway.lesion(model, data=[(ids, torch.full_like(ids, -100))], delete=None)
    assert math.isnan(nothing.baseline)


# ---- nothing stays


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    torch.manual_seed(0)
    model = skipway.create_model("resnet20@preact").train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    attributes = {n: dict(vars(m)) for n, m in model.named_modules()}
    addresses = {n: id(p) for n, p in model.named_parameters()}
    random = torch.get_rng_state()

    def metric(output: Tensor) -> Tensor:
        return output if fails else output.mean()

    if fails:
        with pytest.raises(SkipwayError):
            skipway.lesion(model, torch.randn(2, 3, 32, 32, generator=torch.Generator()), metric, swap=True)
    else:
        for mode in ("eval", "train"):
            skipway.lesion(model, torch.randn(2, 3, 32, 32, generator=torch.Generator()), metric, swap=True, mode=mode)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert {n: id(p) for n, p in model.named_parameters()} == addresses
    assert {n: dict(vars(m)) for n, m in model.named_modules()} == attributes
    assert torch.equal(random, torch.get_rng_state())
    assert model.training


# ---- errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"delete": 40},
            "delete=40, but 3 units can be deleted\nexpected: a number from 1 to 3",
        ),
        ({"delete": ["stack.units.7"]}, ("unknown unit 'stack.units.7'\nexpected: did you mean 'stack.units.2' or "
         "'stack.units.1' or 'stack.units.0'?")),
        (
            {"delete": "stack.units.1"},
            ("delete='stack.units.1'\nexpected: 'each', a number of units to draw, or a list of paths\n"
            "try: delete=['stack.units.1']"),
        ),
        (
            {"metric": lambda out: out},
            ("metric <lambda> gave a Tensor of shape (2, 10)\nexpected: a number, or a tensor with one element\n"
            "try: its mean()"),
        ),
        (
            {"metric": lambda _: "good"},
            "metric <lambda> gave a str\nexpected: a number, or a tensor with one element\ntry: its mean()",
        ),
        ({"metric": "eror"}, "unknown metric 'eror'\nexpected: did you mean 'error'?"),
        (
            {"metric": "error"},
            ("metric 'error' without targets\nexpected: labelled batches\n"
            "try: data=[(inputs, targets), …], or metric=function"),
        ),
        (
            {"swap": [("stack.units.0", "stack.units.1")]},
            ("units 'stack.units.0' and 'stack.units.1' cannot be swapped: their modules differ in class or shape, or "
            "are shared\nexpected: two of one structure"),
        ),
        (
            {"blocks": ["stack.units.1"], "delete": ["stack.units.1"]},
            ("block 'stack.units.1' cannot be deleted: it changes the shape, (2, 16, 32, 32) to (2, 32, 16, 16)\n"
            "expected: another block"),
        ),
        ({"draws": 0}, "draws=0\nexpected: a number of random draws, at least 1"),
    ],
)  # fmt: skip
def test_errors(options: dict[str, Any], text: str) -> None:
    model = skipway.create_model("resnet8")
    with pytest.raises(SkipwayError) as error:
        skipway.lesion(model, torch.zeros(2, 3, 32, 32), **options)
    assert str(error.value) == text
    assert isinstance(error.value, UnknownNameError) == text.startswith("unknown")


def test_no_units() -> None:
    with pytest.raises(SkipwayError) as error:
        skipway.lesion(skipway.create_model("plain8"), torch.zeros(2, 3, 32, 32))
    assert str(error.value) == (
        "no residual units were found in Net on float32[2,3,32,32]\n"
        "expected: a model with units, or blocks= for modules to replace by the identity\n"
        'try: skipway.lesion(model, batch, blocks="auto")'
    )


# ---- the record


def test_back_from_json_and_as_a_table() -> None:
    model = skipway.create_model("resnet20@preact")
    found = skipway.lesion(model, torch.randn(2, 3, 32, 32), delete=["each", 2], draws=2, swap=True)
    again = Lesion.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    with pytest.raises(SkipwayError, match="lesion without what"):
        Lesion.from_dict({k: v for k, v in found.to_dict().items() if k != "what"})
    frame = found.to_frame()
    assert len(frame) == len(found.runs)
    assert frame["influence"].notna().sum() >= 4
    assert found.summary()["count"] == 9
    assert math.isnan(skipway.lesion(model, torch.randn(2, 3, 32, 32), "influence").summary()["median"])
