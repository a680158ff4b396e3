"""The rules on single adds, where their programs do not lead: what is meant, what is spelled otherwise, no runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from skipway import inspect

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.diagnostics.finding import Finding


class Unit(nn.Module):
    """A module whose forward is given."""

    def __init__(
        self, forward: Callable[[Any, torch.Tensor], torch.Tensor], width: int = 8, **parts: nn.Module
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.own = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(self, x)


def of_rule(rule: str, model: nn.Module, batch: torch.Tensor, **options: Any) -> list[Finding]:
    torch.manual_seed(0)
    return [f for f in inspect(model, batch, **options).findings if f.rule == rule]


def stem(*units: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), *units)


def overwritten(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x + unit.body(torch.relu_(x))  # type: ignore[operator]


def rebound(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = torch.relu_(x)
    return x + unit.body(x)  # type: ignore[operator]


def added_to_an_alias(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = x
    h += unit.body(x)  # type: ignore[operator]
    return x + unit.body(h)  # type: ignore[operator]


def in_place_all_along(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x += unit.body(x)  # type: ignore[operator]
    x += unit.body(x)  # type: ignore[operator]
    return x


@pytest.mark.parametrize(
    ("forward", "convicted"),
    [(overwritten, True), (rebound, False), (added_to_an_alias, True), (in_place_all_along, False)],
)
def test_two_names_of_one_tensor_are_told_from_one(forward: Any, convicted: bool) -> None:
    found = of_rule("shortcut-overwritten", stem(Unit(forward), Unit(forward)), torch.randn(4, 8))
    assert [f.severity for f in found] == ["error"] * convicted


def test_the_difference_is_that_to_the_model_mended_by_hand() -> None:
    model, batch = stem(Unit(overwritten)), torch.randn(4, 8)
    mended = stem(Unit(lambda unit, x: x + unit.body(torch.relu(x))))
    mended.load_state_dict(model.state_dict())
    (found,) = of_rule("shortcut-overwritten", model, batch)
    with torch.no_grad():
        expected = (mended(batch) - model(batch)).abs().max()
    assert found.evidence["largest_output_difference"] == pytest.approx(float(expected))
    assert "relu" in found.fix


def test_only_the_writes_that_destroy_are_counted() -> None:
    (found,) = of_rule("shortcut-overwritten", stem(Unit(rebound), Unit(overwritten)), torch.randn(4, 8))
    assert (found.evidence["writes"], found.path) == (1, "2")


def test_what_the_write_does_not_change_is_no_fault() -> None:
    units = [Unit(lambda unit, x: torch.relu(overwritten(unit, x))) for _ in range(2)]
    assert not of_rule("shortcut-overwritten", stem(nn.ReLU(), *units), torch.randn(4, 8))


def test_structure_only_warns_where_the_branch_cannot_have_returned_the_write() -> None:
    in_branch = Unit(lambda unit, x: x + unit.first(x), first=nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)))
    assert [
        f.severity for f in of_rule("shortcut-overwritten", stem(in_branch), torch.randn(4, 8), structure_only=True)
    ] == ["warning"]
    assert not of_rule("shortcut-overwritten", stem(Unit(rebound)), torch.randn(4, 8), structure_only=True)


# Writes whose result is dropped, or that go to a part of x: all by two names of one tensor, or by one.


def dropped(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = x
    h.relu_()
    return x + unit.body(h)  # type: ignore[operator]


def shortcut_named(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    shortcut = x
    x.relu_()
    return shortcut + unit.body(x)  # type: ignore[operator]


def by_a_function(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def body(t: torch.Tensor) -> torch.Tensor:
        t.relu_()
        return unit.body(t)  # type: ignore[no-any-return,operator]

    return x + body(x)


def part_of_an_alias(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = x
    h[:, :4] = 1.0
    return x + unit.body(h)  # type: ignore[operator]


def part_twice(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = x
    h[:, 4:] *= 3
    h[..., 0].mul_(2)
    return x + unit.body(h)  # type: ignore[operator]


def one_name(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x.relu_()
    x[:, :4] = 1.0
    x[:, 4:] *= 3
    return x + unit.body(x)  # type: ignore[operator]


def one_name_by_a_function(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def relu(t: torch.Tensor) -> torch.Tensor:
        t.relu_()
        return t

    x = relu(x)
    return x + unit.body(x)  # type: ignore[operator]


def second_name_unread(unit: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = x
    h.relu_()
    return h + unit.body(h)  # type: ignore[operator]


MENDED: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    dropped: torch.relu,
    shortcut_named: torch.relu,
    by_a_function: torch.relu,
    part_of_an_alias: lambda x: torch.cat([torch.ones_like(x[:, :4]), x[:, 4:]], 1),
    part_twice: lambda x: torch.cat([x[:, :1] * 2, x[:, 1:4], x[:, 4:] * 3], 1),
}


@pytest.mark.parametrize("forward", MENDED, ids=lambda f: f.__name__)
def test_a_write_without_a_result_is_told_by_names(forward: Any) -> None:
    model, batch = stem(Unit(forward), Unit(forward)), torch.randn(4, 8)
    mended = stem(*[Unit(lambda unit, x: x + unit.body(MENDED[forward](x))) for _ in range(2)])
    mended.load_state_dict(model.state_dict())
    (found,) = of_rule("shortcut-overwritten", model, batch)
    with torch.no_grad():
        expected = (mended(batch) - model(batch)).abs().max()
    assert found.severity == "error"
    assert found.evidence["largest_output_difference"] == pytest.approx(float(expected))


@pytest.mark.parametrize(
    "forward", [one_name, one_name_by_a_function, second_name_unread], ids=lambda f: f.__name__
)  # fmt: skip
def test_a_write_that_all_read_by_one_name_is_meant(forward: Any) -> None:
    assert not of_rule("shortcut-overwritten", stem(Unit(forward), Unit(forward)), torch.randn(4, 8))


def test_names_outside_of_the_unit_are_not_tried() -> None:
    """One run for the result, two for the names in the unit's code; that of the loop around it is nobody's business."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.units = nn.ModuleList(Unit(one_name) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for unit in self.units:
                x = unit(x)
            return x

    assert inspect(stem(Loop()), torch.randn(4, 8)).runs["shortcut-overwritten"] == 3


def test_names_in_attributes_are_not_seen() -> None:
    def kept(unit: Any, x: torch.Tensor) -> torch.Tensor:
        unit.kept = x
        unit.kept.relu_()
        return x + unit.body(unit.kept)  # type: ignore[no-any-return]

    model, batch = stem(Unit(kept)), torch.randn(4, 8)
    mended = stem(Unit(lambda unit, x: x + unit.body(torch.relu(x))))
    assert not torch.equal(model(batch), mended(batch)), "there is a fault"
    assert not of_rule("shortcut-overwritten", model, batch)


def test_a_matrix_and_its_transpose_are_not_one_tensor() -> None:
    model = stem(Unit(lambda _, x: x + x.mT))
    assert not of_rule("self-add", model, torch.randn(2, 8, 8))


class Recurrence(nn.Module):
    """One module called again and again; every step takes up the input anew."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.step, self.steps = nn.Linear(8, 8), Unit(self.forward_step), steps

    @staticmethod
    def forward_step(unit: Any, x: torch.Tensor) -> torch.Tensor:
        return x + unit.body(x)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x = self.stem(x)
        for _ in range(self.steps):
            z = self.step(z + x)
        return z


def test_an_input_that_every_step_takes_up_anew_is_meant() -> None:
    model, batch = Recurrence(8), torch.randn(4, 8)
    assert not of_rule("double-add", model, batch)
    assert not of_rule("self-add", model, batch), "the first step adds the input to itself"
    assert of_rule("self-add", Recurrence(1), batch), "which alone is a fault"


@pytest.mark.parametrize("times", [2, 3])
def test_many_sums_of_a_stream_in_one_block_are_no_recurrence(times: int) -> None:
    def again(unit: Any, x: torch.Tensor) -> torch.Tensor:
        y = unit.body(x)
        for _ in range(times):
            y = y + x
        return y  # type: ignore[no-any-return]

    assert [f.severity for f in of_rule("double-add", stem(*[Unit(again) for _ in range(5)]), torch.randn(4, 8))] == [
        "error"
    ]


def test_the_jumped_unit_is_named() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.mlp = (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.mlp(x + self.attention(x))

    (found,) = of_rule("wrong-ancestor", stem(Layer()), torch.randn(4, 8))
    assert (found.severity, found.path, found.evidence["jumped_unit"]) == ("error", "1", "1.attention")


def test_a_residual_module_inside_a_branch_is_nested_and_no_fault() -> None:
    inner = Unit(lambda unit, x: x + unit.body(x))
    model = stem(Unit(lambda unit, x: x + unit.body(unit.inner(x)), inner=inner))
    assert not of_rule("wrong-ancestor", model, torch.randn(4, 8))
    assert [f.severity for f in of_rule("nested-unit", model, torch.randn(4, 8))] == ["info"]


@pytest.mark.parametrize(
    ("shortcut", "branch", "layer"),
    [
        (nn.Identity(), nn.Conv2d(8, 16, 3, padding=1), "nn.Conv2d(8, 16, kernel_size=1, bias=False)"),
        (
            nn.Identity(),
            nn.Conv2d(8, 8, 3, stride=4, padding=1),
            "nn.Conv2d(8, 8, kernel_size=1, stride=4, bias=False)",
        ),
        (nn.Identity(), nn.ConvTranspose2d(8, 8, 2, stride=2), "nn.Upsample(scale_factor=2)"),
        (nn.Identity(), nn.Conv2d(8, 8, 3), "padding=kernel_size // 2"),
        (nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2, padding=1), "ceil_mode=True"),
    ],
)
def test_the_layer_that_fits_is_spelled_out(shortcut: nn.Module, branch: nn.Module, layer: str) -> None:
    size = 15 if isinstance(shortcut, nn.MaxPool2d) else 16
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), Unit(lambda unit, x: unit.shortcut(x) + unit.branch(x), shortcut=shortcut, branch=branch)
    )
    (found,) = of_rule("missing-projection", model, torch.randn(2, 3, size, size))
    assert found.severity == "error"
    assert layer in found.fix


def test_a_linear_layer_for_tokens_and_a_concatenation_that_does_not_fit() -> None:
    tokens = Unit(lambda unit, x: x + unit.wide(x), wide=nn.Linear(8, 12))
    (found,) = of_rule("missing-projection", stem(tokens), torch.randn(2, 5, 8))
    assert "nn.Linear(8, 12, bias=False)" in found.fix
    joined = Unit(lambda unit, x: torch.cat([x, unit.down(x)], 1), down=nn.Conv2d(8, 8, 3, stride=2, padding=1))
    (found,) = of_rule("missing-projection", nn.Sequential(nn.Conv2d(3, 8, 1), joined), torch.randn(2, 3, 8, 8))
    assert found.evidence["operation"] == "cat"


def test_columns_and_rows_are_meant() -> None:
    attention = Unit(lambda unit, x: (unit.a(x) + unit.b(x).mT).softmax(-1) @ x, a=nn.Linear(8, 1), b=nn.Linear(8, 1))
    assert not of_rule("broadcast-add", stem(attention), torch.randn(6, 8))
    distances = Unit(lambda unit, x: x.square().sum(1, keepdim=True) + unit.body(x).square().sum(1))
    assert not of_rule("broadcast-add", stem(distances), torch.randn(6, 8))


def test_a_global_context_is_information() -> None:
    context = Unit(lambda unit, x: x + unit.body(x.mean(1, keepdim=True)))
    (found,) = of_rule("broadcast-add", stem(context), torch.randn(2, 5, 8))
    assert (found.severity, found.fix) == ("info", "nothing, if one value for all positions is meant")
    mixing = Unit(lambda unit, x: x + unit.body(x.mean(0, keepdim=True)))
    (found,) = of_rule("broadcast-add", stem(mixing), torch.randn(2, 5, 8))
    assert (found.severity, found.fix) == ("info", "nothing, if one value for all samples of the batch is meant")


def test_an_in_place_write_that_nobody_keeps_is_healthy_and_without_a_backward_run_there_is_a_warning() -> None:
    healthy = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    assert not of_rule("inplace-add", healthy, torch.randn(4, 8), structure_only=True)
    kept = stem(nn.Sigmoid(), Unit(in_place_all_along))
    (found,) = of_rule("inplace-add", kept, torch.randn(4, 8), structure_only=True)
    assert found.severity == "warning"
    (found,) = of_rule("inplace-add", kept, torch.randn(4, 8))
    assert (found.severity, found.evidence["passes_out_of_place"]) == ("error", "yes")


def test_one_write_among_healthy_ones_is_found() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate = self.first(x).sigmoid()
            out = gate * x
            gate += 1  # both sigmoid and the product kept it
            return torch.relu_(self.second(out)) + x

    (found,) = of_rule("inplace-add", stem(Block()), torch.randn(4, 8))
    assert found.evidence["kept_by"] == "sigmoid in 1"
    assert (found.evidence["writes"], found.evidence["operation"], found.path) == (1, "add_", "1")
