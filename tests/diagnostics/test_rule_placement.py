"""Rules on the place of norms, activations, scales, projections, dropout and gates, in spellings of many kinds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diagnostics.placement_nets import C, D, highway, images, rms, tokens
from skipway.diagnostics.inspect import inspect

if TYPE_CHECKING:
    from skipway.diagnostics.finding import Finding

PLACEMENT = (
    "post-norm-deep", "shortcut-after-norm", "missing-final-norm", "double-norm", "missing-final-activation",
    "relu-after-add-deep", "nonnegative-branch", "norm-after-add", "scaled-shortcut", "projected-shortcut",
    "dropout-on-shortcut", "gate-unbounded", "gate-shut", "rank-collapse",
)  # fmt: skip


def findings(net: tuple[nn.Module, torch.Tensor], **options: Any) -> list[Finding]:
    return [f for f in inspect(*net, **options).findings if f.rule in PLACEMENT]


def of_gates(net: tuple[nn.Module, torch.Tensor]) -> list[Finding]:
    return [f for f in findings(net) if f.rule.startswith("gate-")]  # without norms biases make tokens alike, too


def convicted(net: tuple[nn.Module, torch.Tensor], **options: Any) -> list[tuple[str, str]]:
    return [(f.rule, f.severity) for f in findings(net, **options)]


def encoder(depth: int, *, pre_norm: bool, norm: nn.Module | None = None) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, 4, 32, dropout=0.0, batch_first=True, norm_first=pre_norm)
    return nn.TransformerEncoder(layer, depth, norm=norm, enable_nested_tensor=False), torch.randn(4, 6, D)


# --- norms ---


def pre(b: Any, x: torch.Tensor) -> torch.Tensor:
    return x + b.mlp(b.n1(x))


def pre_by_hand(b: Any, x: torch.Tensor) -> torch.Tensor:
    return x + b.mlp(rms(x))


def parallel(b: Any, x: torch.Tensor) -> torch.Tensor:
    n = b.n1(x)
    return x + b.mlp(n) + b.other(n)


def post(b: Any, x: torch.Tensor) -> torch.Tensor:
    x = b.n1(x + b.other(x))
    return b.n2(x + b.mlp(x))


def behind_norm(b: Any, x: torch.Tensor) -> torch.Tensor:
    x = b.n1(x)
    return x + b.mlp(x)


def behind_both(b: Any, x: torch.Tensor) -> torch.Tensor:
    x = b.n1(x)
    x = x + b.other(x)
    x = b.n2(x)
    return x + b.mlp(x)


def behind_second(b: Any, x: torch.Tensor) -> torch.Tensor:
    x = x + b.other(b.n1(x))
    x = b.n2(x)
    return x + b.mlp(x)


def behind_rms(b: Any, x: torch.Tensor) -> torch.Tensor:
    x = rms(x)
    return x + b.mlp(x)


@pytest.mark.parametrize("forward", [behind_norm, behind_both, behind_second, behind_rms])
def test_split_behind_the_norm_within_one_call(forward: Any) -> None:
    assert convicted(tokens(forward)) == [("shortcut-after-norm", "warning")]


def test_one_unit_of_six_splits_behind_its_norm() -> None:
    (finding,) = findings(tokens(pre, pre, pre, behind_norm, pre, pre))
    assert (finding.rule, finding.path) == ("shortcut-after-norm", "blocks.3")
    assert finding.evidence == {"units_split_behind_norm": 1, "units": 6, "norm": "blocks.3.n1"}


def test_units_unlike_their_siblings_are_found_without_module_calls() -> None:
    assert convicted(tokens(inline=behind_second)) == [("shortcut-after-norm", "warning")]


def test_a_stack_in_one_call_that_begins_with_a_norm_is_undecided() -> None:
    assert convicted(tokens(inline=behind_both, normed=False)) == [("shortcut-after-norm", "info")]
    assert convicted(tokens(inline=post, normed=False)) == []
    assert convicted(tokens(inline=pre)) == []


@pytest.mark.parametrize("written", [pre, post])
def test_a_norm_of_the_embedding_belongs_to_no_unit(written: Any) -> None:
    for net in (tokens(written, normed=written is pre), tokens(inline=written, normed=written is pre)):
        net[0].stem = nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D))
        assert convicted(net) == []


def test_post_norm_blocks_are_not_split_behind_a_norm() -> None:
    assert convicted(tokens(post, normed=False)) == []


@pytest.mark.parametrize("forward", [pre, pre_by_hand, parallel])
def test_pre_norm_wants_a_final_norm(forward: Any) -> None:
    assert convicted(tokens(forward, normed=False)) == [("missing-final-norm", "warning")]
    assert convicted(tokens(forward)) == []


def test_final_norm_of_pytorchs_encoder() -> None:
    assert convicted(encoder(3, pre_norm=True)) == [("missing-final-norm", "warning")]
    assert convicted(encoder(3, pre_norm=True, norm=nn.LayerNorm(D))) == []
    assert convicted(encoder(3, pre_norm=False)) == []
    (double,) = findings(encoder(3, pre_norm=False, norm=nn.LayerNorm(D)))
    assert (double.rule, double.severity) == ("double-norm", "info")
    assert double.evidence == {"post_norm_units": 6, "norm": "layers.2.norm2", "second_norm": "norm"}


def test_deep_post_norm_is_an_error_once_collapse_is_measured() -> None:
    net = encoder(40, pre_norm=False)
    found = findings(net)
    assert [(f.rule, f.severity, f.cause) for f in found] == [
        ("post-norm-deep", "error", ""),
        ("rank-collapse", "warning", "post-norm-deep"),
    ]
    assert found[0].evidence["units"] == 80
    assert found[0].evidence["similarity_last"] > 0.99
    assert convicted(net, structure_only=True) == [("post-norm-deep", "warning")]
    assert convicted(encoder(20, pre_norm=False), structure_only=True) == []


class Bare(nn.Module):
    """The encoder's layer without its norms, which the caller applies."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 4, batch_first=True)
        self.up, self.down = nn.Linear(D, 32), nn.Linear(32, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.relu(self.up(x))) + self.attention(x, x, x, need_weights=False)[0]


def followed_by(layer: Any, blocks: list[nn.Module]) -> nn.Sequential:
    """Blocks, and between each two a layer that is no part of either."""
    between = [[block, layer()] for block in blocks]
    return nn.Sequential(*[piece for pair in between for piece in pair][:-1])


def test_a_deep_stream_whose_caller_norms_between_units_is_post_norm() -> None:
    torch.manual_seed(0)
    net = followed_by(lambda: nn.LayerNorm(D), [Bare() for _ in range(60)]), torch.randn(4, 6, D)
    found = findings(net)
    assert ("post-norm-deep", "error") in [(f.rule, f.severity) for f in found]
    assert next(f for f in found if f.rule == "post-norm-deep").evidence["units"] == 59
    assert ("post-norm-deep", "warning") in convicted(net, structure_only=True)
    shallow = followed_by(lambda: nn.LayerNorm(D), [Bare() for _ in range(6)]), torch.randn(4, 6, D)
    assert convicted(shallow) == []


def test_layers_that_the_caller_puts_between_convolutional_units() -> None:
    batch = torch.randn(4, C, 8, 8)
    model, _ = images(lambda b, x: x + b.branch(x), depth=64)
    (relu,) = findings((followed_by(nn.ReLU, list(model.blocks)), batch))
    assert relu.rule == "relu-after-add-deep"
    assert relu.evidence["units"] == 63
    assert relu.evidence["cuts_per_entry"] > 1
    model, _ = images(lambda b, x: x + b.branch(x))
    (norm,) = findings((followed_by(lambda: nn.BatchNorm2d(C), list(model.blocks)), batch))
    assert (norm.rule, norm.path) == ("norm-after-add", "0")
    assert norm.evidence["units"] == 5
    assert norm.evidence["gain_product"] < 0.5


def test_deep_post_norm_without_attention_is_no_fault() -> None:
    assert convicted(tokens(lambda b, x: b.n1(x + b.mlp(x)), depth=60, normed=False)) == []


def test_tokens_that_are_alike_from_the_start_do_not_collapse() -> None:
    model, batch = tokens(pre, depth=8)
    assert convicted((model, batch[:, :1].expand(-1, 6, -1).clone())) == []


# --- activations ---


def silu_by_hand(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


@pytest.mark.parametrize("activate", [F.relu, F.silu, silu_by_hand])
def test_pre_activation_wants_norm_and_activation_behind_the_last_unit(activate: Any) -> None:
    def forward(b: Any, x: torch.Tensor) -> torch.Tensor:
        return x + b.c2(activate(b.n2(b.c1(activate(b.n1(x))))))

    assert convicted(images(forward)) == [("missing-final-activation", "warning")]
    assert convicted(images(forward, end=nn.BatchNorm2d(C))) == [("missing-final-activation", "warning")]
    assert convicted(images(forward, end=nn.Sequential(nn.BatchNorm2d(C), nn.ReLU()))) == []


@pytest.mark.parametrize("cut", [F.relu, F.relu_, lambda x: x.clamp(min=0)])
def test_relu_on_the_path_of_a_very_deep_net(cut: Any) -> None:
    (finding,) = findings(images(lambda b, x: cut(x + b.branch(x)), depth=64))
    assert finding.rule == "relu-after-add-deep"
    assert finding.evidence["cut_share_first"] > 0.2
    assert finding.evidence["cuts_per_entry"] > 1


def test_relu_on_the_path_is_left_alone_up_to_60_units_and_where_it_cuts_nothing() -> None:
    assert convicted(images(lambda b, x: F.relu(x + b.branch(x)), depth=50)) == []
    idle, batch = images(lambda b, x: F.relu(x + b.branch(x)), depth=64)
    for block in idle.blocks:
        nn.init.zeros_(block.n2.weight)
    assert convicted((idle, batch)) == []
    assert convicted((idle, batch), structure_only=True) == [("relu-after-add-deep", "warning")]


def test_a_highway_can_shrink_its_stream() -> None:
    def forward(b: Any, x: torch.Tensor) -> torch.Tensor:
        t = torch.sigmoid(b.g(x))
        return t * F.relu(b.mlp(x)) + (1 - t) * x

    assert "nonnegative-branch" not in [rule for rule, _ in convicted(tokens(forward))]


@pytest.mark.parametrize(
    "end",
    [F.relu_, F.softplus, torch.sigmoid, lambda x: x.clamp(min=0), lambda x: F.relu(x) ** 2, lambda x: 0.5 * F.relu(x)],
)
def test_branch_that_only_adds(end: Any) -> None:
    (finding,) = findings(images(lambda b, x: x + end(b.n1(b.c1(x)))))
    assert (finding.rule, finding.severity) == ("nonnegative-branch", "warning")
    assert finding.evidence["smallest_branch_value"] >= 0
    assert finding.evidence["stream_growth"] > 1


@pytest.mark.parametrize("end", [F.gelu, F.silu, lambda x: x.clamp(min=-1), lambda x: -F.relu(x)])
def test_branch_that_may_also_take_away(end: Any) -> None:
    assert convicted(images(lambda b, x: x + end(b.n1(b.c1(x))))) == []


# --- on the path ---


def test_batch_norm_on_the_path_in_both_modes() -> None:
    model, batch = images(lambda b, x: F.relu(b.n2(x + b.c2(F.relu(b.n1(b.c1(x)))))))
    for mode in (True, False):
        (finding,) = findings((model.train(mode), batch))
        assert (finding.rule, finding.path) == ("norm-after-add", "blocks.0")
        assert finding.evidence["units"] == 5  # behind the last it is no part of the way


def test_parallel_linear_branches_with_one_batch_norm_are_one_convolution() -> None:
    assert convicted(images(lambda b, x: b.n1(x + b.c1(x)))) == []


@pytest.mark.parametrize(
    ("forward", "factor"),
    [
        (lambda b, x: torch.add(b.mlp(b.n1(x)), x, alpha=0.5), 0.5),
        (lambda b, x: (x + b.mlp(b.n1(x))) / math.sqrt(2), 0.5**0.5),
        (lambda b, x: torch.stack([x, b.mlp(b.n1(x))]).mean(0), 0.5),
        (lambda b, x: torch.lerp(x, b.mlp(b.n1(x)), 0.3), 0.7),
        (lambda b, x: x + 0.6 * (b.mlp(b.n1(x)) - x), 0.4),
        (lambda b, x: b.factor * x + b.mlp(b.n1(x)), 0.7),
        (lambda b, x: b.factor * (x + b.mlp(b.n1(x))), 0.7),
        (lambda b, x: 2 * x + b.mlp(b.n1(x)), 2.0),
    ],
)
def test_factor_on_the_path(forward: Any, factor: float) -> None:
    (finding,) = findings(tokens(forward))
    assert (finding.rule, finding.severity) == ("scaled-shortcut", "warning")
    assert finding.evidence["factor_per_unit"] == pytest.approx(factor, rel=1e-5)
    assert finding.evidence["factor_product"] == pytest.approx(factor**6, rel=1e-4)


def test_factors_that_scale_nothing() -> None:
    assert convicted(tokens(lambda b, x: b.n1(2 * x + b.mlp(x)), normed=False)) == []  # a norm follows
    assert convicted(tokens(lambda b, x: x + 0.1 * b.mlp(b.n1(x)))) == []  # on the branch
    assert convicted(tokens(lambda b, x: 0.99 * x + b.mlp(b.n1(x)))) == []  # 0.94 over all


@pytest.mark.parametrize("depth", [2, 6])
def test_projection_where_an_identity_would_do(depth: int) -> None:
    (finding,) = findings(images(lambda b, x: F.relu(b.n1(b.p(x)) + b.c2(F.relu(b.c1(x)))), depth=depth))
    assert (finding.rule, finding.path) == ("projected-shortcut", "blocks.0")
    assert finding.evidence == {
        "units": depth,
        "units_that_keep_shape": depth,
        "layer": "nn.Conv2d(8, 8, 1)",
    }
    assert finding.fix.startswith("replace nn.Conv2d(8, 8, 1) in blocks.0.p by nn.Identity()")


def test_linear_projection_of_tokens() -> None:
    (finding,) = findings(tokens(lambda b, x: b.p(x) + b.mlp(b.n1(x))))
    assert (finding.rule, finding.evidence["layer"]) == ("projected-shortcut", "nn.Linear(16, 16)")


@pytest.mark.parametrize(
    "forward",
    [
        lambda b, x: F.dropout(x + b.mlp(b.n1(x)), 0.1, b.training),
        lambda b, x: F.dropout(x, 0.1, b.training) + b.mlp(b.n1(x)),
        lambda b, x: x * torch.empty_like(x).bernoulli_(0.9).div_(0.9) + b.mlp(b.n1(x)),
        lambda b, x: x * (torch.rand_like(x) > 0.1) / 0.9 + b.mlp(b.n1(x)),
    ],
)
def test_dropout_on_the_path(forward: Any) -> None:
    (finding,) = findings(tokens(forward))
    assert (finding.rule, finding.severity) == ("dropout-on-shortcut", "warning")
    assert finding.evidence["survival"] == pytest.approx(0.9 ** finding.evidence["units"], rel=0.3)
    assert finding.evidence["dropped_share"] == pytest.approx(0.1, abs=0.05)


def test_dropout_behind_the_last_unit_and_in_the_branch_is_right() -> None:
    assert convicted(tokens(lambda b, x: x + F.dropout(b.mlp(b.n1(x)), 0.1, b.training))) == []
    model, batch = tokens(pre)
    model.blocks[5].written = lambda b, x: F.dropout(pre(b, x), 0.1, b.training)
    assert convicted((model, batch)) == []


# --- gates ---


def by_lerp(b: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.lerp(x, b.mlp(x), b.g(x) - 2)


def by_difference(b: Any, x: torch.Tensor) -> torch.Tensor:
    return x + (b.g(x) - 2) * (b.mlp(x) - x)


def by_ones(b: Any, x: torch.Tensor) -> torch.Tensor:
    t = b.g(x) - 2
    return t * b.mlp(x) + (torch.ones_like(t) - t) * x


def by_minus(b: Any, x: torch.Tensor) -> torch.Tensor:
    t = b.g(x) - 2
    return torch.addcmul((-t + 1) * x, b.mlp(x), t)


def on_the_stream(b: Any, x: torch.Tensor) -> torch.Tensor:
    t = b.g(x) + 3
    return (1 - t) * b.mlp(x) + t * x


def on_the_shortcut_alone(b: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.exp(b.g(x) + 1) * x + b.mlp(x)


@pytest.mark.parametrize(
    "forward",
    [
        by_lerp, by_difference, by_ones, by_minus, on_the_stream, on_the_shortcut_alone,
        highway(lambda t: t - 2), highway(lambda t: torch.tanh(t - 2)), highway(lambda t: 3 * torch.sigmoid(t) - 3),
    ],
)  # fmt: skip
def test_gate_that_is_none(forward: Any) -> None:
    (finding,) = of_gates(tokens(forward, depth=8))
    assert (finding.rule, finding.severity) == ("gate-unbounded", "error")
    assert finding.evidence["gates"] >= 5
    assert finding.evidence["stream_growth"] > 2
    assert finding.evidence["share_outside"] > 0.5


def test_unbounded_gate_without_growth_and_without_a_measurement_is_a_warning() -> None:
    small = tokens(highway(lambda t: 0.05 * t), depth=4)
    assert convicted(small) == [("gate-unbounded", "warning")]
    assert convicted(small, structure_only=True) == []  # a product of a linear layer may well be bounded
    assert convicted(tokens(highway(lambda t: t)), structure_only=True) == [("gate-unbounded", "warning")]


@pytest.mark.parametrize(
    "gate",
    [torch.sigmoid, F.hardsigmoid, lambda t: t.softmax(-1), lambda t: t.clamp(0, 1), lambda t: 0.5 + 0.5 * t.tanh()],
)
def test_gates_within_bounds(gate: Any) -> None:
    assert of_gates(tokens(highway(gate), depth=8)) == []


@pytest.mark.parametrize(
    ("forward", "side"),
    [
        (highway(lambda t: torch.sigmoid(t - 12)), "branch"),
        (highway(lambda t: torch.sigmoid(t + 12)), "shortcut"),
        (lambda b, x: torch.lerp(x, b.mlp(x), torch.sigmoid(b.g(x) - 12)), "branch"),
        (lambda b, x: x + torch.sigmoid(b.g(x) - 12) * b.mlp(b.n1(x)), "branch"),
        (lambda b, x: x * torch.sigmoid(b.g(x) - 12) + b.mlp(b.n1(x)), "shortcut"),
    ],
)
def test_gate_that_is_shut(forward: Any, side: str) -> None:
    (finding,) = findings(tokens(forward, depth=4))
    assert (finding.rule, finding.severity) == ("gate-shut", "warning")
    assert f"shuts the {side} everywhere" in finding.message
    assert finding.evidence["gates"] == 4


def test_open_gates_are_left_alone() -> None:
    assert convicted(tokens(highway(lambda t: torch.sigmoid(t - 3)))) == []
    assert convicted(tokens(lambda b, x: x + torch.sigmoid(b.g(x) + 12) * b.mlp(b.n1(x)))) == []
