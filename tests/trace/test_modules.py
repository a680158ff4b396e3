"""The tree of module calls is the same however calls are seen, and nothing stays behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from skipway.trace.modules import ModuleStack

WIDTH = 4
PLACE = "_compiled_call_impl"
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_forward_hooks_always_called")


class _Stubborn(nn.Module):
    """Tries a part that raises, goes on without it, and calls a part that it does not own."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Sequential(nn.Identity(), nn.Linear(WIDTH + 1, WIDTH))
        self.fits = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.narrow(x)
        except RuntimeError:
            x = self.fits(x)
        return nn.Tanh()(self.fits(x))


def _calls(model: nn.Module) -> list[tuple[object, ...]]:
    stack = ModuleStack(model)
    with stack, torch.no_grad():
        model(torch.zeros(2, WIDTH))
    assert stack.top == 0
    return [(c.id, c.path, c.number, c.parent, c.depth, c.cls, c.input_shape, c.output_shape) for c in stack.calls]


def _left_behind() -> tuple[object, ...]:
    return (vars(nn.Module).get(PLACE), *(dict(getattr(module_hooks, name)) for name in GLOBAL_HOOKS))


EXPECTED = [
    (0, "", 0, -1, 0, "", (), ()),
    (1, "", 0, 0, 1, "_Stubborn", (2, WIDTH), (2, WIDTH)),
    (2, "narrow", 0, 1, 2, "Sequential", (2, WIDTH), ()),
    (3, "narrow.0", 0, 2, 3, "Identity", (), ()),
    (4, "narrow.1", 0, 2, 3, "Linear", (), ()),
    (5, "fits", 0, 1, 2, "Sequential", (2, WIDTH), (2, WIDTH)),
    (6, "fits.0", 0, 5, 3, "Linear", (), ()),
    (7, "fits.1", 0, 5, 3, "ReLU", (), ()),
    (8, "fits", 1, 1, 2, "Sequential", (2, WIDTH), (2, WIDTH)),
    (9, "fits.0", 1, 8, 3, "Linear", (), ()),
    (10, "fits.1", 1, 8, 3, "ReLU", (), ()),
    (11, "?Tanh", 0, 1, 2, "Tanh", (), ()),
]


def test_calls_are_numbered_and_nested_also_where_one_raises() -> None:
    before = _left_behind()
    assert _calls(_Stubborn()) == EXPECTED
    assert _left_behind() == before


def test_hooks_see_the_same_where_the_place_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(module: nn.Module, *args: object, **kwargs: object) -> object:
        return module._call_impl(*args, **kwargs)

    monkeypatch.setattr(nn.Module, PLACE, taken)
    before = _left_behind()
    assert _calls(_Stubborn()) == EXPECTED
    assert _left_behind() == before
    assert vars(nn.Module)[PLACE] is taken


def test_hooks_see_the_same_where_a_part_is_compiled() -> None:
    model = _Stubborn()
    part = model.fits
    part._compiled_call_impl = part._call_impl  # what `part.compile()` sets, without a compiler
    assert _calls(model) == EXPECTED


def test_nothing_stays_behind_a_model_that_raises() -> None:
    before = _left_behind()
    stack = ModuleStack(nn.Identity())
    with pytest.raises(RuntimeError, match="cannot be multiplied"), stack:
        nn.Linear(WIDTH + 1, WIDTH)(torch.zeros(2, WIDTH))
    assert _left_behind() == before
    assert [c.path for c in stack.calls] == ["", "?Linear"]


def test_calls_can_be_read_while_the_model_runs() -> None:
    seen = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(stack.innermost_path)
            return x

    model = nn.Sequential(Looks(), nn.Sequential(Looks()))
    with ModuleStack(model) as stack:
        model(torch.zeros(2, WIDTH))
    assert seen == ["0", "1.0"]
