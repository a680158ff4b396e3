"""The rules on dead parts, initial scales, buffers, decay and growth, where their programs do not lead."""

from __future__ import annotations

import copy
import math
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import timm
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from skipway import inspect

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.diagnostics.finding import Finding

    Forward = Callable[[Any, torch.Tensor], torch.Tensor]
    Make = Callable[[Any], object]

WIDTH = 16
BATCH = torch.randn(4, 6, WIDTH, generator=torch.Generator().manual_seed(1))


class Mlp(nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor] = F.gelu) -> None:
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A unit whose forward is given; `make` adds what it needs."""

    def __init__(self, forward: Forward, make: Make | None = None, body: Callable[[], nn.Module] = Mlp) -> None:
        super().__init__()
        self.norm, self.body, self.own = nn.LayerNorm(WIDTH), body(), forward
        if make is not None:
            make(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(self, x)


def pre_norm(unit: Any, x: torch.Tensor) -> torch.Tensor:
    return x + unit.body(unit.norm(x))  # type: ignore[no-any-return]


def without(unit: Any, x: torch.Tensor) -> torch.Tensor:
    return unit.body(unit.norm(x))  # type: ignore[no-any-return]


def net(forward: Forward = pre_norm, make: Make | None = None, units: int = 6, body: Any = Mlp) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Block(forward, make, body) for _ in range(units)])


def found(model: nn.Module, batch: Any = BATCH, **options: Any) -> dict[str, list[Finding]]:
    torch.manual_seed(0)
    by_rule: dict[str, list[Finding]] = {}
    for finding in inspect(model, batch, **options).findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    return by_rule


def only(rule: str, *args: Any, **options: Any) -> Finding:
    (finding,) = found(*args, **options)[rule]
    return finding


def scalar(name: str, value: float, shape: tuple[int, ...] = ()) -> Make:
    return lambda unit: unit.register_parameter(name, nn.Parameter(torch.full(shape, value)))


def buffer(value: float, shape: tuple[int, ...] = ()) -> Make:
    return lambda unit: unit.register_buffer("scale", torch.full(shape, value), persistent=False)


def zeroed(*layers: Callable[[Any], nn.Module]) -> Make:
    def make(unit: Any) -> None:
        for layer in layers:
            for parameter in layer(unit).parameters():
                nn.init.zeros_(parameter)

    return make


def end(unit: Any) -> nn.Module:
    return unit.body.down  # type: ignore[no-any-return]


# ---- dead-op


class Reads(nn.Module):
    """A branch whose second layer reads the block's input; the model itself adds it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        F.relu(self.first(x))
        return self.second(x)  # type: ignore[no-any-return]


class Adds(nn.Module):
    """Adds what its branches give; the one at `bare` is not added."""

    def __init__(self, branch: Callable[[], nn.Module], bare: int = -1, units: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.blocks, self.bare = nn.Linear(WIDTH, WIDTH), nn.ModuleList(branch() for _ in range(units)), bare

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for k, block in enumerate(self.blocks):
            x = block(x) if k == self.bare else x + block(x)
        return x


def test_a_lost_result_is_found_where_the_model_itself_adds() -> None:
    finding = only("dead-op", Adds(Reads))
    assert finding.path == "blocks.0.first"
    assert finding.message == "first (Linear) runs, and its result is lost ×6"


def test_a_layer_scale_that_is_not_applied() -> None:
    finding = only("dead-op", net(make=scalar("gamma", 1.0, (WIDTH,))))
    assert (finding.path, finding.message) == ("1", "parameter gamma is never used ×6")
    assert finding.evidence == {"parameters": 6, "name": "1.gamma"}


def test_a_table_may_wait_for_an_input() -> None:
    assert "dead-op" not in found(net(make=scalar("segments", 1.0, (2, WIDTH))))


def test_a_lost_module_is_told_without_its_parametrization() -> None:
    def loses(unit: Any, x: torch.Tensor) -> torch.Tensor:
        unit.lost(x)
        return pre_norm(unit, x)

    finding = only("dead-op", net(loses, lambda unit: setattr(unit, "lost", weight_norm(nn.Linear(WIDTH, WIDTH)))))
    assert (finding.path, finding.evidence["modules"]) == ("1.lost", 6)


def discards(unit: Any, x: torch.Tensor) -> torch.Tensor:
    y = unit.body(unit.norm(x))
    unit.drop(y)
    return x + y  # type: ignore[no-any-return]


@pytest.mark.parametrize("part", [nn.ReLU(), nn.Dropout(0.1)], ids=["activation", "dropout"])
def test_a_result_that_nobody_reads(part: nn.Module) -> None:
    finding = only("dead-op", net(discards, lambda unit: unit.add_module("drop", copy.deepcopy(part))))
    assert finding.message.startswith(f"drop ({type(part).__name__}) runs, and its result is lost")


def test_what_works_in_place_is_not_lost() -> None:
    def rectified(unit: Any, x: torch.Tensor) -> torch.Tensor:
        y = unit.body.up(unit.norm(x))
        unit.act(y)
        return x + unit.body.down(y)  # type: ignore[no-any-return]

    assert "dead-op" not in found(net(rectified, lambda unit: unit.add_module("act", nn.ReLU(inplace=True))))


def test_what_chance_left_out_of_one_run_is_alive() -> None:
    def skips(unit: Any, x: torch.Tensor) -> torch.Tensor:
        x = pre_norm(unit, x)
        if unit.training and random.random() < 0.5:
            return x
        return x + unit.second(unit.norm(x))  # type: ignore[no-any-return]

    random.seed(0)
    assert "dead-op" not in found(net(skips, lambda unit: unit.add_module("second", Mlp())))


class Experts(nn.Module):
    """Each token goes to one of 16 experts; those that get none do not run."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16)
        self.experts = nn.ModuleList(Mlp() for _ in range(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(x).reshape(-1, WIDTH)
        weight, choice = self.router(tokens).softmax(-1).topk(1, -1)
        out = torch.zeros_like(tokens)
        for k, expert in enumerate(self.experts):
            at = (choice[:, 0] == k).nonzero()[:, 0]
            if len(at):
                out = out.index_add(0, at, weight[at] * expert(tokens[at]))
        return x + out.view_as(x)


def test_experts_without_tokens_are_not_dead() -> None:
    torch.manual_seed(0)
    assert "dead-op" not in found(nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Experts() for _ in range(4)]))


# ---- dead-unit


def shut(model: nn.Sequential) -> nn.Sequential:
    nn.init.constant_(model.get_parameter("3.body.up.bias"), -50.0)
    return model


def test_shut_activations_leave_a_constant() -> None:
    finding = only("dead-unit", shut(net(units=8, body=lambda: Mlp(F.relu))))
    assert finding.path == "3"
    assert finding.evidence == {"units": 1, "siblings": 8, "largest_gradient": 0.0}


def test_branches_that_a_constant_holds_at_zero() -> None:
    def rezero(unit: Any, x: torch.Tensor) -> torch.Tensor:
        return x + unit.alpha * unit.body(unit.norm(x))  # type: ignore[no-any-return]

    findings = found(net(rezero, lambda unit: setattr(unit, "alpha", torch.zeros(()))))
    (finding,) = findings["dead-unit"]
    assert (finding.path, finding.evidence["units"], finding.severity) == ("1", 6, "warning")
    assert "dead-unit" not in found(net(rezero, scalar("alpha", 0.0)))


def test_a_zero_norm_before_a_squeeze_gate_is_reached() -> None:
    def gated(unit: Any, x: torch.Tensor) -> torch.Tensor:
        y = unit.last(unit.body(x))
        return x + y * unit.gate(y.mean(1, keepdim=True)).sigmoid()  # type: ignore[no-any-return]

    def make(unit: Any) -> None:
        unit.last, unit.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(unit.last.weight)

    assert "dead-unit" not in found(net(gated, make))


def test_a_detached_shortcut_is_said() -> None:
    def told(model: nn.Module) -> list[str]:
        return [
            note for note in inspect(model, BATCH).notes if note.startswith("the shortcut lets no gradient through")
        ]

    (note,) = told(net(lambda unit, x: x.detach() + unit.body(unit.norm(x))))
    assert "at 6 of 6 units" in note
    assert told(net()) == told(net(lambda unit, x: x + unit.body(unit.norm(x.detach())))) == []


def test_a_detached_branch_is_told_once() -> None:
    model = net()
    block = model[3]
    assert isinstance(block, Block)
    block.own = lambda unit, x: x + unit.body(unit.norm(x)).detach()
    assert "no gradient comes to the branch, whose weights are to train" in only("dead-unit", model).message


# ---- identical-init


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = net()
        self.momentum = copy.deepcopy(self.online)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.online(x), self.momentum(x)


def test_a_momentum_twin_starts_as_a_copy_by_design() -> None:
    assert "identical-init" not in found(Twins())


def test_tied_units_are_no_copies() -> None:
    torch.manual_seed(0)
    assert "identical-init" not in found(nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Block(pre_norm)] * 4))


# ---- init-scale-missing


def drawn(size: Callable[[int, str], float], config: object = None, units: int = 12) -> nn.Sequential:
    """A net whose matrices have the standard deviations given by unit and name, in another module."""
    model = net(units=units)
    for k in range(units):
        for name in ("up", "down"):
            nn.init.normal_(model.get_parameter(f"{k + 1}.body.{name}.weight"), std=size(k, name))
    model.config = config  # type: ignore[assignment]  # what transformers keeps there
    return nn.Sequential(model)


@pytest.mark.parametrize("unscaled", [1, 4, 11])
def test_unscaled_ends_among_scaled_ones(unscaled: int) -> None:
    finding = only(
        "init-scale-missing", drawn(lambda k, name: 0.02 if name == "up" or k < unscaled else 0.02 / 12**0.5)
    )
    assert finding.evidence["unscaled"] == unscaled
    assert finding.path == "0.1.body.down"


def test_the_wrong_matrix_scaled() -> None:
    finding = only("init-scale-missing", drawn(lambda _, name: 0.02 if name == "down" else 0.02 / 12**0.5))
    assert finding.path == "0.1.body.up"


GPT2 = SimpleNamespace(model_type="gpt2", initializer_range=0.02)


def test_a_gpt2_inside_another_module() -> None:
    assert only("init-scale-missing", drawn(lambda *_: 0.02, GPT2)).evidence["unscaled"] == 12
    assert "init-scale-missing" not in found(drawn(lambda *_: 0.02))
    assert "init-scale-missing" not in found(drawn(lambda *_: 0.05, GPT2)), "no longer as it starts"


@pytest.mark.parametrize("config", [None, GPT2], ids=["plain", "gpt2"])
@pytest.mark.parametrize("seed", range(4))
def test_trained_sizes_are_left_alone(config: object, seed: int) -> None:
    chance = random.Random(seed)
    assert "init-scale-missing" not in found(drawn(lambda *_: 0.02 * math.exp(chance.gauss(0, 0.5)), config))


class Says(nn.Sequential):
    """A net whose initialising code is given; its matrices have the sizes that the tests give them."""

    def __init__(self, *parts: nn.Module, config: object = None) -> None:
        super().__init__(*parts)
        self.config, self.n_layer, self.rescaled = config, 6, True


class DrawsByDepth(Says):
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            std = self.config.start / math.sqrt(2 * self.n_layer)  # type: ignore[attr-defined]
            nn.init.normal_(module.weight, mean=0.0, std=std)


class DividesByDepth(Says):
    def __init__(self, *parts: nn.Module, config: object = None) -> None:
        super().__init__(*parts, config=config)
        if self.rescaled:
            self.fix()

    def fix(self) -> None:
        for k, part in enumerate(list(self)[1:]):
            part.body.down.weight.data.div_((2 * (k + 1)) ** 0.5)


class SwitchedOff(Says):
    """The setting by which it would be done is off."""

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and self.config.rescale:  # type: ignore[attr-defined]
            nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * self.n_layer))


class ScalesTheSum(Says):
    """The root of depth is a factor in forward and has to do with no weight; weights are drawn beside it."""

    def __init__(self, *parts: nn.Module, config: object = None) -> None:
        super().__init__(*parts, config=config)
        self.register_buffer("factor", torch.tensor(0.02 / math.sqrt(2 * self.n_layer)))
        for part in list(self)[1:]:
            nn.init.normal_(part.body.down.weight, std=0.02)


def saying(kind: type[Says], size: Callable[[int, str], float]) -> nn.Module:
    model = kind(*net(units=12), config=SimpleNamespace(start=0.02, rescale=False))
    for k in range(12):
        for name in ("up", "down"):
            nn.init.normal_(model.get_parameter(f"{k + 1}.body.{name}.weight"), std=size(k, name))
    return nn.Sequential(model)


@pytest.mark.parametrize("kind", [DrawsByDepth, DividesByDepth])
def test_what_the_code_says_is_missing(kind: type[Says]) -> None:
    finding = only("init-scale-missing", saying(kind, lambda *_: 0.02))
    assert (finding.evidence["unscaled"], finding.path) == (12, "0.1.body.down")
    assert kind.__name__ in finding.message


@pytest.mark.parametrize("kind", [Says, SwitchedOff, ScalesTheSum])
def test_code_that_says_nothing_of_it(kind: type[Says]) -> None:
    assert "init-scale-missing" not in found(saying(kind, lambda *_: 0.02))


def test_what_the_code_says_is_there_or_long_past() -> None:
    by_depth = saying(DrawsByDepth, lambda _, name: 0.02 if name == "up" else 0.02 / 12**0.5)
    assert "init-scale-missing" not in found(by_depth)
    by_layer = saying(DividesByDepth, lambda k, name: 0.02 if name == "up" else 0.02 / (2 * (k + 1)) ** 0.5)
    assert "init-scale-missing" not in found(by_layer)
    assert "init-scale-missing" not in found(saying(DrawsByDepth, lambda *_: 0.05)), "no longer as it starts"
    for seed in range(2):
        chance = random.Random(seed)
        trained = saying(DividesByDepth, lambda *_, chance=chance: 0.02 * math.exp(chance.gauss(0, 0.5)))
        assert "init-scale-missing" not in found(trained)


SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 50}
TOKENS = torch.randint(5, 50, (2, 8), generator=torch.Generator().manual_seed(1))
PUBLIC: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "gpt_bigcode": lambda: (
        transformers.GPTBigCodeModel(transformers.GPTBigCodeConfig(n_embd=64, n_layer=4, n_head=2, vocab_size=50)),
        TOKENS,
    ),
    "modernbert": lambda: (
        transformers.ModernBertModel(
            transformers.ModernBertConfig(
                **SMALL,
                intermediate_size=128,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                cls_token_id=3,
                sep_token_id=4,
            )
        ),
        TOKENS,
    ),
    "beit": lambda: (
        timm.create_model("beit_base_patch16_224", img_size=32, embed_dim=64, depth=4, num_heads=2),
        torch.randn(2, 3, 32, 32),
    ),
    "bert": lambda: (transformers.BertModel(transformers.BertConfig(**SMALL, intermediate_size=128)), TOKENS),
    "vit": lambda: (
        timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=64, depth=4, num_heads=2),
        torch.randn(2, 3, 32, 32),
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PUBLIC)
def test_public_models_that_say_so_and_those_that_do_not(name: str) -> None:
    """Silent as they come; drawn again plainly, those are convicted whose code says what they miss."""
    torch.manual_seed(0)
    model, batch = PUBLIC[name]()
    assert "init-scale-missing" not in found(model, batch)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    assert ("init-scale-missing" in found(model, batch)) is (name not in ("bert", "vit"))


# ---- zero-init, zero-twice


class Gains(nn.Module):
    """A norm's gain in the middle of the branch and the weight at its end; both are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        zeroed(lambda unit: unit.last)(self)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(F.relu(self.norm(self.first(x))))  # type: ignore[no-any-return]


def test_two_zeros_in_a_row_within_the_branch() -> None:
    torch.manual_seed(0)
    findings = found(nn.Sequential(nn.Conv2d(3, 8, 1), *[Gains() for _ in range(4)]), torch.randn(2, 3, 6, 6))
    (finding,) = findings["zero-twice"]
    assert finding.severity == "error"
    assert finding.message == "1.last.weight and 1.norm.weight are both zero: no gradient comes to the branch ×4"
    assert "zero-init" not in findings


class Einsum(nn.Module):
    """Weights that `einsum` multiplies as a batch of matrices, behind them a layer scale; both are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(6, 12)), nn.Parameter(torch.zeros(12, 6))
        self.scale = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.einsum("bsd,st->btd", x, self.up)
        return x + self.scale * torch.einsum("btd,ts->bsd", F.gelu(y), self.down)


def test_a_zero_that_einsum_multiplies_is_one_of_two() -> None:
    torch.manual_seed(0)
    findings = found(nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Einsum() for _ in range(4)]))
    (finding,) = findings["zero-twice"]
    assert (finding.severity, finding.evidence["units"]) == ("error", 4)
    assert finding.message.startswith("1.scale and 1.down are both zero")
    assert "zero-init" not in findings


def test_a_zero_scale_before_drop_path_is_one_of_two() -> None:
    def drops(unit: Any, x: torch.Tensor) -> torch.Tensor:
        kept = torch.empty(len(x), 1, 1).bernoulli_(0.9)
        return x + (unit.scale * unit.body(unit.norm(x))).div(0.9) * kept  # type: ignore[no-any-return]

    def make(unit: Any) -> None:
        scalar("scale", 0.0, (WIDTH,))(unit)
        zeroed(end)(unit)

    findings = found(net(drops, make))
    (finding,) = findings["zero-twice"]
    assert (finding.severity, finding.evidence["units"]) == ("error", 6)
    assert "zero-init" not in findings
    (alone,) = found(net(drops, scalar("scale", 0.0, (WIDTH,))))["zero-init"]
    assert alone.message == "1.scale is zero: the unit starts as its shortcut ×6"


def parallel(unit: Any, x: torch.Tensor) -> torch.Tensor:
    return pre_norm(unit, x) + unit.second(unit.norm(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("profile", ["default", "fast"])
def test_zeros_beside_each_other_are_healthy(profile: str) -> None:
    def make(unit: Any) -> None:
        unit.second = Mlp()
        zeroed(end, lambda unit: unit.second.down)(unit)

    findings = found(net(parallel, make), profile=profile)
    assert "zero-twice" not in findings
    assert findings["zero-init"][0].evidence == {"units": 6, "of": 6}


class Attention(nn.Module):
    """Queries and output start at zero (muP): two zeros on ways beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        zeroed(lambda unit: unit.q, lambda unit: unit.o)(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.o(F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h)))  # type: ignore[no-any-return]


def test_zero_queries_do_not_stop_a_zero_output() -> None:
    torch.manual_seed(0)
    findings = found(nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Attention() for _ in range(4)]))
    assert "zero-twice" not in findings
    assert "zero-init" in findings


def weight_normed(unit: Any) -> None:
    unit.body.down = nn.utils.parametrizations.weight_norm(unit.body.down)
    nn.init.zeros_(unit.body.down.parametrizations.weight.original0)
    nn.init.zeros_(unit.body.down.bias)


def test_a_length_of_zero_is_a_zero_weight() -> None:
    assert "zero-init" in found(net(make=weight_normed))

    def both(unit: Any) -> None:
        weight_normed(unit)
        scalar("alpha", 0.0)(unit)

    assert only("zero-twice", net(rezero, both)).severity == "error"


def rezero(unit: Any, x: torch.Tensor) -> torch.Tensor:
    return x + unit.alpha * unit.body(unit.norm(x))  # type: ignore[no-any-return]


def both_zero(unit: Any) -> None:
    scalar("alpha", 0.0)(unit)
    zeroed(end)(unit)


@pytest.mark.parametrize(
    "forward",
    [
        rezero,
        lambda unit, x: torch.addcmul(x, unit.alpha, unit.body(unit.norm(x))),
        lambda unit, x: x + unit.alpha.tanh() * unit.body(unit.norm(x)),
    ],
    ids=["product", "addcmul", "tanh"],
)
def test_zero_twice_in_other_spellings(forward: Forward) -> None:
    assert only("zero-twice", net(forward, both_zero)).severity == "error"


def test_zero_twice_without_a_run_is_a_warning() -> None:
    finding = only("zero-twice", net(rezero, both_zero), profile="fast")
    assert finding.severity == "warning"
    assert finding.message.endswith("its gradient was not measured ×6")


def test_a_zero_head_hides_nothing() -> None:
    head = nn.Linear(WIDTH, 3)
    zeroed(lambda layer: layer)(head)
    findings = found(nn.Sequential(net(rezero, scalar("alpha", 0.0)), head))
    assert "zero-twice" not in findings
    assert "zero-init" in findings


# ---- scale-buffer


def scaled(unit: Any, x: torch.Tensor) -> torch.Tensor:
    return x + unit.scale * unit.body(unit.norm(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("forward", "value", "shape"),
    [
        (scaled, 1e30, ()),
        (scaled, float("nan"), ()),
        (lambda unit, x: x + unit.scale.bfloat16() * unit.body(unit.norm(x)), 1.2345e30, ()),
        (lambda unit, x: x + unit.scale.view(1, 1, -1) * unit.body(unit.norm(x)), 1e20, (WIDTH,)),
        (lambda unit, x: x + unit.body(unit.norm(x)) / unit.scale, 1e-30, ()),
        (lambda unit, x: torch.addcmul(x, unit.body(unit.norm(x)), unit.scale), 1e30, ()),
        (lambda unit, x: torch.add(x, unit.body(unit.norm(x)), alpha=unit.scale.item()), 1e30, ()),
        (lambda unit, x: unit.scale * x + unit.body(unit.norm(x)), 1e30, ()),
        (lambda unit, x: x + unit.body.down(unit.scale * unit.body.up(unit.norm(x))), 1e30, ()),
    ],
    ids=["branch", "nan", "cast", "vector", "quotient", "addcmul", "number", "shortcut", "within"],
)
def test_garbage_in_every_spelling(forward: Forward, value: float, shape: tuple[int, ...]) -> None:
    finding = only("scale-buffer", net(forward, buffer(value, shape)))
    assert finding.severity == "error"
    assert "multiplied by 1.scale" in finding.message


def test_garbage_of_another_module_is_known_by_its_value() -> None:
    def make(unit: Any) -> None:
        unit.holder = nn.Module()
        buffer(1.2345e30)(unit.holder)

    finding = only("scale-buffer", net(lambda unit, x: x + unit.holder.scale.bfloat16() * unit.body(x), make))
    assert "multiplied by 1.holder.scale" in finding.message


def test_an_embedding_scaled_by_garbage() -> None:
    class Embeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.blocks = nn.Embedding(11, WIDTH), net()
            self.normalizer = nn.Buffer(torch.tensor(3e25), persistent=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.blocks(self.embed(ids) * self.normalizer)  # type: ignore[no-any-return]

    assert "normalizer" in only("scale-buffer", Embeds(), torch.randint(0, 11, (2, 5))).message


@pytest.mark.parametrize("options", [{"profile": "fast"}, {"structure_only": True}], ids=["fast", "structure"])
def test_without_a_look_garbage_is_a_warning(options: dict[str, Any]) -> None:
    finding = only("scale-buffer", net(scaled, buffer(1e30)), **options)
    assert finding.severity == "warning"
    assert finding.message.endswith("(read of the buffer, not of a run)")


def test_a_zero_buffer_is_a_warning() -> None:
    finding = only("scale-buffer", net(scaled, buffer(0.0)))
    assert finding.severity == "warning"
    assert finding.message.endswith("what it scales is shut")


def test_the_gravest_value_is_told_first() -> None:
    model = net(scaled, buffer(0.0))
    model.get_buffer("4.scale").fill_(1e30)
    finding = only("scale-buffer", model)
    assert (finding.severity, finding.path) == ("error", "4")


def test_sound_buffers_cost_no_run() -> None:
    assert "look" not in inspect(net(scaled, buffer(0.5)), BATCH).runs


@pytest.mark.parametrize("profile", ["default", "fast"])
def test_numbers_that_mask_are_no_scales(profile: str) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm, self.q = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
            self.masked = nn.Buffer(torch.tensor(-1e9))
            self.causal = nn.Buffer(torch.full((6, 6), float("-inf")).triu(1))

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            q = self.q(self.norm(x))
            scores = q @ q.transpose(-1, -2) + (1 - mask[:, None]) * self.masked + self.causal
            return x + scores.softmax(-1) @ q  # type: ignore[no-any-return]

    torch.manual_seed(0)
    assert "scale-buffer" not in found(Masked(), (BATCH, torch.ones(4, 6)), profile=profile)


# ---- decay-on-gates


class Rms(nn.Module):
    """A norm written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def decayed(model: nn.Module) -> Finding:
    return only("decay-on-gates", model, optimizer=torch.optim.AdamW(model.parameters(), weight_decay=0.1))


@pytest.mark.parametrize(
    "forward",
    [
        lambda unit, x: torch.lerp(x, unit.body(unit.norm(x)), unit.alpha),
        lambda unit, x: x + unit.alpha.tanh() * unit.body(unit.norm(x)),
        lambda unit, x: unit.alpha * x + unit.body(unit.norm(x)),
        lambda unit, x: x + unit.body.down(unit.alpha * unit.body.up(unit.norm(x))),
    ],
    ids=["lerp", "tanh", "shortcut", "within"],
)
def test_scales_wherever_they_stand(forward: Forward) -> None:
    finding = decayed(net(forward, scalar("alpha", 0.5)))
    assert finding.evidence == {"scales": 6, "norm_parameters": 12, "weight_decay": 0.1}


def test_gains_of_norms_by_hand() -> None:
    finding = decayed(net(make=lambda unit: unit.add_module("norm", Rms())))
    assert finding.evidence == {"scales": 0, "norm_parameters": 6, "weight_decay": 0.1}


def test_scales_of_many_dimensions_are_chosen_by_name() -> None:
    class Conv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3, padding=1)
            self.layer_scale = nn.Parameter(torch.full((8, 1, 1), 1e-6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.layer_scale * self.conv(x)  # type: ignore[no-any-return]

    model = nn.Sequential(*[Conv() for _ in range(4)])
    small = [p for p in model.parameters() if p.dim() < 2]
    large = [p for p in model.parameters() if p.dim() > 1]
    groups: list[dict[str, Any]] = [{"params": large}, {"params": small, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    finding = only("decay-on-gates", model, torch.randn(2, 8, 6, 6), optimizer=optimizer)
    assert finding.evidence["scales"] == 4
    assert "n.endswith('layer_scale')" in finding.fix


def test_without_an_optimizer_it_is_told() -> None:
    assert "not looked at without the optimizer: decay-on-gates, not-optimized" in inspect(net(), BATCH).notes


UNREAD = "not looked at without the values of parameters: identical-init, init-scale-missing, zero-init, zero-twice"


def test_where_only_the_structure_is_asked_for_no_rule_judges_how_weights_start() -> None:
    model = net(make=lambda unit: [nn.init.zeros_(p) for p in unit.body.down.parameters()])
    fast = inspect(model, BATCH, profile="fast")
    structure = inspect(model, BATCH, structure_only=True, profile="fast")
    assert "zero-init" in {f.rule for f in fast.findings}
    assert UNREAD not in fast.notes
    assert "zero-init" not in {f.rule for f in structure.findings}
    assert UNREAD in structure.notes


def test_on_the_meta_device_no_rule_judges_how_weights_start() -> None:
    assert UNREAD in inspect(net().to("meta"), BATCH).notes


# ---- branch-scale


def he(unit: Any) -> None:
    del unit.norm
    nn.init.kaiming_normal_(unit.body.up.weight)
    nn.init.kaiming_normal_(unit.body.down.weight)


def with_gain(unit: Any) -> None:
    he(unit)
    scalar("gain", 1.0, (WIDTH,))(unit)


@pytest.mark.parametrize(
    ("forward", "make"),
    [(lambda unit, x: x + unit.body(x).mul(1.0), he), (lambda unit, x: x + unit.gain * unit.body(x), with_gain)],
    ids=["number", "layer scale"],
)
def test_a_scale_of_one_holds_nothing(forward: Forward, make: Make) -> None:
    finding = only("branch-scale", net(forward, make, 24))
    assert float(finding.evidence["growth"]) > 1e3


class LongSkip(nn.Module):
    """A long skip around all units, as in super-resolution."""

    def __init__(self, scale: float, units: int = 16) -> None:
        super().__init__()
        self.body = net(lambda unit, x: x + unit.body(x).mul(scale), he, units)
        self.stem, self.body[0], self.end = nn.Linear(WIDTH, WIDTH), nn.Identity(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return x + self.end(self.body(x))  # type: ignore[no-any-return]


def test_growth_inside_a_long_skip() -> None:
    finding = only("branch-scale", LongSkip(1.0))
    assert (finding.path, finding.evidence["units"]) == ("body.1", 16)
    assert float(finding.evidence["growth"]) > 50
    assert "branch-scale" not in found(LongSkip(0.1))


def test_growth_beyond_the_number_format() -> None:
    finding = only("branch-scale", net(lambda unit, x: x + 2 * unit.body(x), he, 130))
    assert "it is beyond its number format" in finding.message


# ---- missing-shortcut


def test_views_behind_a_branch_leave_it_a_branch() -> None:
    class Windows(nn.Module):
        def __init__(self, *, padded: bool) -> None:
            super().__init__()
            self.mlp, self.padded = Mlp(), padded

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.padded:
                return x + self.mlp(x)  # type: ignore[no-any-return]
            return x + torch.flip(self.mlp(torch.flip(x, (1,))), (1,))[:, :6].transpose(1, 2).clone().transpose(1, 2)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Windows(padded=k == 0) for k in range(6)])
    assert "missing-shortcut" not in found(model)


def test_one_of_two_shortcuts_in_a_block() -> None:
    class Layer(nn.Module):
        def __init__(self, *, whole: bool) -> None:
            super().__init__()
            self.norm, self.a, self.b, self.whole = nn.LayerNorm(WIDTH), Mlp(), Mlp(), whole

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.a(self.norm(x))
            y = self.b(self.norm(x))
            return x + y if self.whole else y  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Layer(whole=k != 3) for k in range(6)])
    finding = only("missing-shortcut", model)
    assert finding.path == "4"
    assert finding.message == (
        "this Layer lacks one of 2 shortcuts, unlike 5 others of its kind; what 4.b gives is not added to anything"
    )


def test_a_branch_that_its_caller_does_not_add() -> None:
    finding = only("missing-shortcut", Adds(Mlp, bare=5, units=8))
    assert finding.path == "blocks.5"
    assert "missing-shortcut" not in found(Adds(Mlp, units=8))


class OneLayer(nn.Module):
    """A unit with one weighted layer."""

    def __init__(self, *, bare: bool = False) -> None:
        super().__init__()
        self.norm, self.weight, self.bare = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), bare

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.weight(torch.tanh(self.norm(x)))
        return y if self.bare else x + y  # type: ignore[no-any-return]


def test_blocks_of_one_layer() -> None:
    torch.manual_seed(0)
    finding = only("missing-shortcut", nn.Sequential(*[OneLayer(bare=k == 17) for k in range(30)]))
    assert (finding.path, finding.evidence["equals"]) == ("17", 30)
    # A layer by itself is no block: what the last unit gives passes one more, as wide as those in the branches.
    plain = nn.Linear(WIDTH, WIDTH)
    assert "missing-shortcut" not in found(nn.Sequential(*[OneLayer() for _ in range(8)], plain))


def test_two_that_lack_theirs_are_one_finding() -> None:
    model = net(units=8)
    for block in (model[3], model[6]):
        assert isinstance(block, Block)
        block.own = without
    assert only("missing-shortcut", model).message.endswith("unlike 6 others of its kind ×2: 3, 6")


def test_the_decay_of_a_deep_stack_is_told_per_layer() -> None:
    torch.manual_seed(0)
    finding = only("missing-shortcut", nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Sigmoid())] * 40))
    assert 0.05 < float(finding.evidence["decay_per_layer"]) < 0.5


class Streams(nn.Module):
    """Two streams that first meet in the first block, where no branch leads back to what it is added to."""

    def __init__(self, *, first_adds: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stems = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.blocks = nn.ModuleList(self.Meets(adds=first_adds or k > 0) for k in range(5))

    class Meets(nn.Module):
        def __init__(self, *, adds: bool) -> None:
            super().__init__()
            self.bodies, self.adds = nn.ModuleList(Mlp() for _ in range(2)), adds

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a = a + self.bodies[0](b) if self.adds else self.bodies[0](b)
            return a, b + self.bodies[1](a)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = self.stems[0](a), self.stems[1](b)
        for block in self.blocks:
            a, b = block(a, b)
        return torch.cat((a, b), -1)


def test_where_streams_meet_first_a_sum_is_a_shortcut_all_the_same() -> None:
    batch = (BATCH, BATCH + 1)
    assert "missing-shortcut" not in found(Streams(), batch)
    assert only("missing-shortcut", Streams(first_adds=False), batch).path == "blocks.0"


def test_a_sum_whose_result_is_lost_is_no_missing_shortcut() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(Layer() for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros(())
            for layer in self.layers:
                x, skip = layer(x)
                total = total + skip
            return F.relu(total * len(self.layers) ** -0.5)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.back, self.skip = Mlp(F.tanh), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.body(x)
            return x + self.back(y), self.skip(y)

    findings = found(Skips())
    assert "missing-shortcut" not in findings
    assert [f.path for f in findings["dead-op"]] == ["layers.5.back"]
    assert not {"projected-shortcut", "scaled-shortcut"} & set(findings), "all skips are summed and scaled once"


def test_a_module_that_is_called_again_has_its_shortcut() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.stem, self.mlp = nn.Linear(WIDTH, WIDTH), self.Step()

        class Step(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = Mlp()

            def forward(self, x: torch.Tensor, *, first: bool) -> torch.Tensor:
                return self.body(x) if first else x + self.body(x)  # type: ignore[no-any-return]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for k in range(8):
                x = self.mlp(x, first=k == 0)
            return x

    assert "missing-shortcut" not in found(Again())


def test_a_gradient_that_is_not_finite_is_no_decay() -> None:
    layers = [nn.Linear(16, 16) for _ in range(40)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=1e5)  # infinities of both signs meet
    findings = found(nn.Sequential(*layers), torch.ones(4, 16))
    assert "non-finite" in findings
    assert "missing-shortcut" not in findings
