"""What the stream passes between units: named where something stands, and nothing where nothing does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

import skipway
from skipway.errors import SkipwayError
from skipway.units.passage import Passage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

D = 16


class Block(nn.Module):
    """x + F(x), perhaps with something before the split or behind the sum that belongs to no unit."""

    def __init__(self, before: nn.Module | None = None) -> None:
        super().__init__()
        self.before = before or nn.Identity()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return x + self.down(torch.relu(self.up(x)))


class Between(nn.Module):
    """Three blocks; `layers` act on the stream in front of the second and the third."""

    def __init__(self, act: Callable[[Between, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.act, self.layers = act, nn.ModuleDict(layers)
        self.stem, self.head = nn.Linear(4, D), nn.Linear(D, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, given: Tensor) -> Tensor:
        x = self.stem(given)
        self.given = x
        for k, block in enumerate(self.blocks):
            x = block(self.act(self, x) if k else x)
        out: Tensor = self.head(x)
        return out


def passed(model: nn.Module, batch: Tensor | None = None, *, eval_mode: bool = False) -> list[tuple[str, str] | None]:
    """Path and equation of what stands before each unit."""
    torch.manual_seed(0)
    model.train(not eval_mode)
    found = skipway.inspect(model, torch.randn(5, 4) if batch is None else batch, structure_only=True)
    return [None if u.before is None else (u.before.path, u.before.equation()) for u in found.units]


ACTS = {
    "nothing": (Between(lambda m, x: x), None),
    "views": (Between(lambda m, x: x.unsqueeze(1).transpose(1, 2).reshape(-1, D)), None),
    "an embedding added": (Between(lambda m, x: x + m.stem.bias), None),
    "a norm": (Between(lambda m, x: m.layers["n"](x), n=nn.LayerNorm(D)), ("layers.n", "LN(x)")),
    "an activation": (Between(lambda m, x: torch.relu(x)), ("<root>", "ReLU(x)")),
    "a factor": (Between(lambda m, x: 0.5 * x), ("<root>", "0.5·x")),
    "weights": (Between(lambda m, x: m.layers["l"](x), l=nn.Linear(D, D)), ("layers.l", "Linear(x)")),
    "dropout": (Between(lambda m, x: m.layers["d"](x), d=nn.Dropout(0.25)), ("layers.d", "dropout[0.25](x)")),
    "a whole block": (
        Between(lambda m, x: m.layers["b"](x), b=nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU())),
        ("layers.b", "GELU·Linear·LN(x)"),
    ),
    "two modules": (
        Between(lambda m, x: m.layers["b"](torch.tanh(m.layers["a"](x))), a=nn.Linear(D, D), b=nn.LayerNorm(D)),
        ("<root>", "LN·Tanh·Linear(x)"),
    ),
    "something from elsewhere": (
        Between(lambda m, x: m.layers["l"](torch.cat([x, m.given], 1)), l=nn.Linear(2 * D, D)),
        ("<root>", "Linear(x, …)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_what_a_parent_does_between_its_blocks(name: str) -> None:
    model, expected = ACTS[name]
    first, *rest = passed(model)
    assert first is None  # what stands before the first unit stands between no two
    shared = [None if expected is None else (expected[0] + "@1" * expected[0].startswith("layers"), expected[1])]
    assert rest in ([expected, expected], [expected, *shared])


def test_dropout_that_is_off_is_nothing() -> None:
    model, _ = ACTS["dropout"]
    assert passed(model, eval_mode=True) == [None, None, None]


@pytest.mark.parametrize(
    ("before", "equation"), [(nn.LayerNorm(D), "LN(x)"), (nn.ReLU(), "ReLU(x)"), (nn.RMSNorm(D), "RMSNorm(x)")]
)
def test_a_block_that_overwrites_x_before_its_split(before: nn.Module, equation: str) -> None:
    model = nn.Sequential(nn.Linear(4, D), *[Block(before) for _ in range(4)], nn.Linear(D, 2))
    found = passed(model)
    assert [p and p[1] for p in found] == [None, equation, equation, equation]
    assert all(p is None or p[0].split("@")[0].endswith(".before") for p in found)


class NoSkip(Block):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out


def test_a_block_without_a_shortcut_stands_on_the_road() -> None:
    model = nn.Sequential(nn.Linear(4, D), Block(), NoSkip(), Block(), nn.Linear(D, 2))
    assert passed(model) == [None, ("2", "Linear·ReLU·Linear(x)")]


def test_a_block_without_a_shortcut_and_the_next_ones_norm() -> None:
    model = nn.Sequential(nn.Linear(4, D), Block(), NoSkip(), Block(nn.LayerNorm(D)), nn.Linear(D, 2))
    assert passed(model) == [None, ("2 … 3.before", "LN·Linear·ReLU·Linear(x)")]


class Outer(nn.Module):
    """A unit whose branch holds two units with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.between, self.second = nn.LayerNorm(D), Block(), nn.LayerNorm(D), Block()
        self.end = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.end(self.second(self.between(self.first(self.norm(x)))))


class Tokens(nn.Module):
    """A learned token joins the others between two units."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks, self.token = (
            nn.Linear(4, D),
            nn.ModuleList(Block() for _ in range(2)),
            nn.Parameter(torch.zeros(1, 1, D)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.stem(x))
        out: Tensor = self.blocks[1](torch.cat([self.token.expand(len(x), -1, -1), x], 1))
        return out


def test_a_learned_token_that_joins() -> None:
    assert passed(Tokens(), torch.randn(2, 3, 4)) == [None, ("<root>", "pad[learned](x)")]


def test_units_inside_a_branch_follow_one_another_there() -> None:
    model = nn.Sequential(nn.Linear(4, D), Outer(), nn.Tanh(), Outer(), nn.Linear(D, 2))
    torch.manual_seed(0)
    units = skipway.inspect(model, torch.randn(5, 4), structure_only=True).units
    assert [(u.path, u.level, u.before and u.before.equation()) for u in units] == [
        ("1.first", 1, None), ("1.second", 1, "LN(x)"), ("1", 0, None),
        ("3.first", 1, None), ("3.second", 1, "LN(x)"), ("3", 0, "Tanh(x)"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet20", []), ("resnet110@preact", []), ("bert_nano@post_norm", []), ("gpt_nano", []),
        ("resnet20@revnet", ["0.5·(x, …)"] * 2),  # between stages the mean of both streams
    ],
)  # fmt: skip
def test_our_own_nets(name: str, expected: list[str]) -> None:
    batch = torch.randn(2, 3, 32, 32) if "resnet" in name else torch.randint(0, 50, (2, 16))
    found = skipway.inspect(skipway.create_model(name), batch, structure_only=True)
    assert found.units
    assert [u.before.equation() for u in found.units if u.before is not None] == expected


def public() -> Iterator[tuple[str, int, list[tuple[str, str]]]]:
    yield "timm:convnext_atto", 64, [(f"stages.{k}.downsample", "Conv2x2/2·LN(x)") for k in (1, 2, 3)]
    inverted = "BN·Conv1x1·ReLU6·BN·DWConv3x3{}·ReLU6·BN·Conv1x1(x)"
    yield "timm:mobilenetv2_100", 64, [(f"blocks.{k}.0", inverted.format("/2" * (k != 4))) for k in (2, 3, 4, 5)]
    yield "tv:mobilenet_v2", 64, [(f"features.{k}", inverted.format("/2" * (k != 11))) for k in (4, 7, 11, 14)]
    yield "tv:densenet121", 64, [(f"features.transition{k}", "AvgPool2x2/2·Conv1x1·ReLU·BN(x)") for k in (1, 2, 3)]
    yield "timm:resnetv2_50", 64, [(f"stages.{k}.blocks.0.norm1", "ReLU·BN(x)") for k in (1, 2, 3)]
    yield "tv:resnet18", 64, []


@pytest.mark.parametrize(("name", "side", "expected"), list(public()), ids=lambda v: v if isinstance(v, str) else "")
def test_public_models(name: str, side: int, expected: list[tuple[str, str]]) -> None:
    torch.manual_seed(0)
    model = skipway.load_model(name).model.eval()
    batch = torch.randn(2, 3, side, side)
    units = skipway.inspect(model, batch, structure_only=True).units
    assert [(u.before.path, u.before.equation()) for u in units if u.before] == expected
    assert all(u.before.closed for u in units if u.before)
    pairs = [(a.path, b.before.path) for a, b in itertools.pairwise(units) if b.before and a.form.merge == "add"]
    for unit, passage in pairs:  # the module that is named takes what the unit before gave
        assert of_a_call(model, batch, unit)[1] == of_a_call(model, batch, passage)[0]


def of_a_call(model: nn.Module, batch: Tensor, path: str) -> tuple[float, float]:
    """The sums of what a module is given and of what it gives."""
    seen: list[tuple[float, float]] = []
    module = model.get_submodule(path)
    first = module.register_forward_pre_hook(lambda _, given: seen.append((given[0].sum().item(), 0.0)))
    second = module.register_forward_hook(lambda _, given, gave: seen.append((seen[-1][0], gave.sum().item())))
    with torch.no_grad():
        model(batch)
    first.remove()
    second.remove()
    return seen[-1]


def test_read_back_and_told_in_words() -> None:
    model, _ = ACTS["something from elsewhere"]
    found = skipway.inspect(model, torch.randn(5, 4), structure_only=True)
    again = skipway.Inspection.from_dict(found.to_dict())
    assert [u.before for u in again.units] == [u.before for u in found.units]
    assert [u.before and u.before.closed for u in again.units] == [None, False, False]
    older = found.to_dict()
    for unit in older["units"]:
        del unit["before"]
    assert [u.before for u in skipway.Inspection.from_dict(older).units] == [None, None, None]


@pytest.mark.parametrize("equation", ["x", "Linear", "What?(x)", ""])
def test_a_passage_that_is_none_is_refused(equation: str) -> None:
    with pytest.raises(SkipwayError):
        Passage.from_dict({"path": "a", "equation": equation, "closed": True})


def test_the_frame_has_the_equation() -> None:
    pytest.importorskip("pandas")
    model, _ = ACTS["a norm"]
    frame = skipway.inspect(model, torch.randn(5, 4), structure_only=True).to_frame()
    assert frame["before"].fillna("").tolist() == ["", "LN(x)", "LN(x)"]


def road_of(model: nn.Module) -> list[str]:
    """The lines of the road in the terminal's report, without those of input and output."""
    text = str(skipway.inspect(model, torch.randn(5, 4), structure_only=True))
    lines = text[text.index("x' =") :].splitlines()
    return [line.strip() for line in lines[2 : next(k for k, line in enumerate(lines) if "output" in line)]]


def test_the_road_in_the_terminal() -> None:
    blocks = [Block(), *[Block(nn.LayerNorm(D)) for _ in range(4)]]
    model = nn.Sequential(nn.Linear(4, D), *blocks, NoSkip(), Block(), nn.Linear(D, 2))
    assert road_of(model) == [
        "│  1…4        ×4┐ x + A(x)",
        "◇  2…5.before ×4┘ LN(x)",
        "│  5              x + A(x)",
        "■▽ 6              A(x)",
        "│  7              x + A(x)",
    ]
    assert road_of(Between(lambda m, x: x))[0].startswith("│ blocks.0…2 ×3 x + A(x)")


def test_stem_and_head() -> None:
    model = nn.Sequential(nn.Linear(4, D), nn.LayerNorm(D), Block(), Block(), nn.LayerNorm(D), nn.Linear(D, 2))
    found = skipway.inspect(model, torch.randn(5, 4), structure_only=True)
    assert found.stem is not None
    assert found.head is not None
    assert (found.stem.path, found.stem.equation()) == ("0 … 1", "LN·Linear(x)")
    assert (found.head.path, found.head.equation()) == ("4 … 5", "Linear·LN(x)")
    again = skipway.Inspection.from_dict(found.to_dict())
    assert (again.stem, again.head) == (found.stem, found.head)
    older = {name: value for name, value in found.to_dict().items() if name not in ("stem", "head")}
    assert skipway.Inspection.from_dict(older).stem is None


@pytest.mark.parametrize(
    ("name", "stem", "head"),
    [
        ("tv:resnet18", "MaxPool3x3/2·ReLU·BN·Conv7x7/2(x)", "Linear·AvgPool(x)"),
        ("timm:vit_tiny_patch16_224", "pad[learned]·Conv16x16/16(x)", "Linear·LN(x)"),
        ("tv:densenet121", "MaxPool3x3/2·ReLU·BN·Conv7x7/2(x)", "Linear·AvgPool·ReLU·BN(x)"),
        ("resnet20@preact", "ReLU·BN·Conv3x3(x)", "Linear·AvgPool·ReLU·BN(x)"),
        ("gpt_nano", "Embed(x)", "Linear·LN(x)"),
    ],
)
def test_stems_and_heads_of_public_models(name: str, stem: str, head: str) -> None:
    loaded = skipway.load_model(name)
    assert loaded.batch is not None
    found = skipway.inspect(loaded.model.eval(), loaded.batch, structure_only=True, profile="fast")
    assert found.stem is not None
    assert found.head is not None
    assert (found.stem.equation(), found.head.equation()) == (stem, head)


class TwoOutputs(nn.Module):
    """Two inputs, two streams' worth of layers before the units, two outputs behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.blocks = nn.Linear(4, D), nn.Linear(3, D), nn.Sequential(Block(), Block())
        self.mask, self.box = nn.Linear(D, 2), nn.Linear(D, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.blocks(torch.tanh(self.first(x)) + self.second(y))
        return torch.relu(self.mask(x)), self.box(x)


def test_of_several_inputs_and_outputs_the_first() -> None:
    found = skipway.inspect(TwoOutputs(), (torch.randn(5, 4), torch.randn(5, 3)), structure_only=True)
    assert found.stem is not None
    assert found.head is not None
    assert (found.stem.equation(), found.head.equation()) == ("Tanh·Linear(x, …)", "ReLU·Linear(x)")


def test_between_the_halves_of_reversible_blocks_nothing_is_told() -> None:
    class Coupled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.g = (nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.Tanh()) for _ in range(2))
            self.norm = nn.LayerNorm(D)

        def forward(self, x: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            first = first + self.f(second)
            return self.norm(torch.cat([first, second + self.g(first)], -1).unflatten(-1, (2, D))).flatten(-2)

    found = skipway.inspect(nn.Sequential(Coupled(), Coupled()), torch.randn(5, 2 * D), structure_only=True)
    assert found.units
    assert all(u.before is None for u in found.units if u.form.stream == "pair")


def test_a_transposed_convolution_is_no_convolution() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.relu(self.inner(x))

    model = nn.Sequential(Wide(), nn.Conv2d(4, 4, 2, 2), Wide(), nn.ConvTranspose2d(4, 4, 4, 2, 1), Wide())
    assert passed(model, torch.randn(1, 4, 8, 8)) == [None, ("1", "Conv2x2/2(x)"), ("3", "ConvT4x4/2(x)")]


def test_where_nothing_stands_before_or_behind() -> None:
    found = skipway.inspect(nn.Sequential(Block(), Block()), torch.randn(5, D), structure_only=True)
    assert (found.stem, found.head) == (None, None)
    plain = skipway.inspect(nn.Sequential(nn.Linear(4, D), nn.Tanh()), torch.randn(5, 4), structure_only=True)
    assert (plain.stem, plain.head) == (None, None)
