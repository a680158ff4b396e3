"""Each alteration is the hand-edited model: outputs, gradients of all parameters, several training steps, to 1e-6."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import timm
import torch
import torchvision
import transformers
from timm.models.vision_transformer import Block as VitBlock
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock
from transformers.models.bert.modeling_bert import BertAttention, BertOutput, BertSelfOutput

import skipway
from skipway import Alteration
from units.hand_edited import ConvNet, Edit, TokenNet, train, with_forward

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

pytestmark = pytest.mark.filterwarnings("ignore")  # other libraries' deprecations

BOUND = 1e-6
SEEN = 1e-4  # an alteration that does nothing is nearer to the unaltered model than this


@pytest.fixture(autouse=True)
def _double() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def difference(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]], *, but: str = "") -> float:
    """Largest relative difference over all steps and tensors; a tensor that one side lacks counts as zero there."""
    worst = 0.0
    for left, right in zip(a, b, strict=True):
        largest = max(float(v.abs().max()) for k, v in left.items() if k != "output")
        for name in left.keys() | right.keys():
            if but and but in name:
                continue
            one = left.get(name, torch.zeros(()))
            other = right.get(name, torch.zeros(()))
            size = max(float(one.norm()), float(other.norm()), 1e-6 * largest)
            worst = max(worst, float((one - other).norm()) / size)
    return worst


def check(
    model: nn.Module,
    hand: nn.Module,
    changes: Mapping[str, Alteration],
    batches: list[Any],
    call: Callable[[nn.Module, Any], Tensor] = lambda m, b: m(b),
    *,
    but: str = "",
) -> None:
    """Compare model under what-if with its hand-edited twin, and see that both differ from the model as it was."""
    hand.load_state_dict(model.state_dict())
    plain = train(copy.deepcopy(model), batches, call)
    by_hand = train(hand, batches, call)
    with skipway.what_if(model, changes, batches[0]):
        altered = train(model, batches, call)
    assert difference(by_hand, altered, but=but) <= BOUND
    assert difference(plain, altered) > SEEN


IMAGES = [(4, 3, 8, 8), (2, 3, 8, 8), (5, 3, 6, 6)]
TOKENS = [(3, 5, 8), (2, 5, 8), (4, 7, 8)]


def batches(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    return [torch.randn(s) for s in shapes]


CONV = [
    (0, {"branch": 0.5}),
    (0, {"branch": 0.0}),
    (1, {"branch_gradient": 0.25}),
    (1, {"shortcut": "identity"}),
    (3, {"shortcut": "identity"}),
    (0, {"shortcut": 1.7}),
    (1, {"shortcut": 0.3, "branch": 2.0, "branch_gradient": 0.5, "after": "skip"}),
    (0, {"after": "skip"}),
    (4, {"after": "skip"}),
    (4, {"norm": "into_branch"}),
    (4, {"norm": "into_branch", "branch": 0.5, "shortcut": 1.2}),
    (2, {"dropout": "off"}),
    (2, {"shortcut": "identity", "dropout": "off"}),
    (3, {"dropout": "off"}),
]


@pytest.mark.parametrize(("at", "fields"), CONV, ids=str)
def test_images(at: int, fields: dict[str, Any]) -> None:
    # The count of batches of a norm that is skipped is the module's own business; where it is moved, it must be right.
    skipped = "num_batches" if fields.get("after") == "skip" or fields.get("shortcut") == "identity" else ""
    if fields.get("shortcut") == "identity":
        skipped = "shortcut.1."  # a norm on the shortcut that is replaced still sees what it saw
    check(ConvNet(), ConvNet({at: Edit(**fields)}), {f"units.{at}": Alteration(**fields)}, batches(IMAGES), but=skipped)


KINDS = (
    "post_norm", "post_norm_function", "minus", "alpha", "parallel", "addcmul", "addmm", "lerp", "stack_mean",
    "interpolation", "ignored", "gate",
)  # fmt: skip
TOKEN = [
    *[(kind, {"branch": 0.6}) for kind in KINDS],
    *[(kind, {"branch_gradient": 0.3}) for kind in KINDS if kind != "post_norm_function"],
    *[(kind, {"shortcut": 1.4}) for kind in KINDS if kind != "interpolation"],
    *[(kind, {"shortcut": "identity"}) for kind in ("alpha", "stack_mean", "gate")],
    *[(kind, {"after": "skip"}) for kind in ("post_norm", "post_norm_function", "ignored", "gate")],
    ("post_norm", {"norm": "into_branch"}),
    ("post_norm_function", {"norm": "into_branch", "dropout": "off"}),
    ("post_norm_function", {"dropout": "off"}),
    ("post_norm", {"norm": "into_branch", "branch": 0.5, "branch_gradient": 0.5, "shortcut": 1.1}),
]


@pytest.mark.parametrize(("kind", "fields"), TOKEN, ids=str)
def test_tokens(kind: str, fields: dict[str, Any]) -> None:
    hand = TokenNet(kind, {0: Edit(**fields), 2: Edit(**fields)})
    change = Alteration(**fields)
    check(TokenNet(kind), hand, {"layers.0": change, "layers.2": change}, batches(TOKENS))


# Models that people use -----------------------------------------------------------------------------------------------


def _basic_block(edit: Edit) -> Callable[..., Tensor]:
    def forward(self: BasicBlock, x: Tensor) -> Tensor:
        f = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        h = x if self.downsample is None else self.downsample(x)
        y = e.of_branch(f) + e.of_shortcut(h, x)
        return y if e.after == "skip" else F.relu(y)

    e = edit
    return forward


PLAIN = [{"branch": 0.5}, {"branch_gradient": 0.5}, {"shortcut": 0.8}, {"after": "skip"}]


@pytest.mark.parametrize(
    "fields", [{"branch": 0.5, "branch_gradient": 0.7, "shortcut": 0.8}, {"after": "skip"}], ids=str
)
def test_torchvision_resnet18(fields: dict[str, Any]) -> None:
    model = torchvision.models.resnet18(num_classes=5)
    hand = with_forward(model, BasicBlock, _basic_block(Edit(**fields)))
    check(model, hand, {"layer*": Alteration(**fields)}, batches([(2, 3, 32, 32), (3, 3, 32, 32)]))


@pytest.mark.parametrize("fields", PLAIN, ids=str)
def test_own_resnet20(fields: dict[str, Any]) -> None:
    e = Edit(**fields)

    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.stem(x)
        for unit in self.stack.units:
            h = unit.join.shortcut(x) if hasattr(unit.join, "shortcut") and unit.join.shortcut is not None else x
            y = e.of_branch(unit.branches[0](x)) + e.of_shortcut(h, x)
            x = y if e.after == "skip" else F.relu(y)
        return self.head(x)

    model = skipway.create_model("resnet20")
    hand = with_forward(model, type(model), forward)
    check(model, hand, {"*": Alteration(**fields)}, batches([(2, 3, 16, 16), (3, 3, 16, 16)]))


def _encoder_layer(edit: Edit) -> Callable[..., Tensor]:
    def forward(self: nn.TransformerEncoderLayer, src: Tensor, *_: Any, **__: Any) -> Tensor:
        x = src
        for norm, f in (
            (self.norm1, lambda v: self._sa_block(v, None, None)),
            (self.norm2, self._ff_block),
        ):
            inside = self.norm_first or edit.norm == "into_branch"
            y = edit.of_shortcut(x, x) + edit.of_branch(f(norm(x) if inside else x))
            x = y if inside or edit.after == "skip" else norm(y)
        return x

    return forward


# Nothing follows the merge of a pre-norm unit.
@pytest.mark.parametrize(
    ("norm_first", "fields"),
    [*((True, f) for f in PLAIN[:3]), *((False, f) for f in [*PLAIN, {"norm": "into_branch"}])],
    ids=str,
)
def test_transformer_encoder(norm_first: bool, fields: dict[str, Any]) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train()
    hand = with_forward(model, nn.TransformerEncoderLayer, _encoder_layer(Edit(**fields)))
    check(model, hand, {"layers.*": Alteration(**fields)}, batches([(2, 5, 16), (3, 6, 16)]))


@pytest.mark.parametrize("fields", PLAIN[:3], ids=str)
def test_timm_vit(fields: dict[str, Any]) -> None:
    e = Edit(**fields)

    def forward(self: VitBlock, x: Tensor, **_: Any) -> Tensor:
        x = e.of_shortcut(x, x) + e.of_branch(self.drop_path1(self.ls1(self.attn(self.norm1(x)))))
        return e.of_shortcut(x, x) + e.of_branch(self.drop_path2(self.ls2(self.mlp(self.norm2(x)))))

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=3,
        drop_path_rate=0.2, init_values=0.1,
    ).train()  # fmt: skip
    hand = with_forward(model, VitBlock, forward)
    check(model, hand, {"blocks.*": Alteration(**fields)}, batches([(2, 3, 32, 32), (3, 3, 32, 32)]))


@pytest.mark.parametrize("fields", [*PLAIN, {"norm": "into_branch"}], ids=str)
def test_hf_bert(fields: dict[str, Any]) -> None:
    e = Edit(**fields)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertModel(config, add_pooling_layer=False).double().train()

    def join(self: Any, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        y = e.of_branch(self.dropout(self.dense(hidden_states))) + e.of_shortcut(input_tensor, input_tensor)
        return y if e.after == "skip" or e.norm == "into_branch" else self.LayerNorm(y)

    hand = with_forward(with_forward(model, BertSelfOutput, join), BertOutput, join)
    if e.norm == "into_branch":

        def attention(self: Any, hidden_states: Tensor, attention_mask: Any = None, *_: Any, **k: Any) -> Any:
            out, *weights = self.self(self.output.LayerNorm(hidden_states), attention_mask=attention_mask)
            return self.output(out, hidden_states), *weights

        def _chunk(m: Any, x: Tensor) -> Tensor:
            return m.output(m.intermediate(m.output.LayerNorm(x)), x)

        hand = with_forward(hand, BertAttention, attention)
        for layer in hand.encoder.layer:
            layer.feed_forward_chunk = partial(_chunk, layer)
    tokens = [{"input_ids": torch.randint(0, 50, (2, 6))}, {"input_ids": torch.randint(0, 50, (3, 5))}]
    changes = {"encoder.layer.*": Alteration(**fields)}
    check(model, hand, changes, tokens, lambda m, b: m(**b).last_hidden_state)


def test_the_hand_edited_code_without_an_edit_is_the_model() -> None:
    """Else it would prove nothing."""
    for model, hand, shapes in (
        (ConvNet(), ConvNet(dict.fromkeys(range(5), Edit())), IMAGES),
        *((TokenNet(kind), TokenNet(kind, dict.fromkeys(range(3), Edit())), TOKENS) for kind in KINDS),
    ):
        hand.load_state_dict(model.state_dict())
        data = batches(shapes)
        assert difference(train(model, data, lambda m, b: m(b)), train(hand, data, lambda m, b: m(b))) <= BOUND
