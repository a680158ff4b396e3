"""What a design says of its units is what the inspector sees in the graph, also where no name says anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from designs.cases import PAIRS, batch_for, build
from designs.erase import erased
from skipway.diagnostics.inspect import inspect

if TYPE_CHECKING:
    from skipway.form import UnitForm
    from skipway.models import Net


def outline(form: UnitForm) -> tuple[Any, ...]:
    """All of a form but the interior of its branch."""
    canonical = form.canonical()
    return canonical.shortcut, canonical.merge, canonical.branch_start, canonical.branch_end, canonical.after


def declared(model: Net) -> list[tuple[Any, ...]]:
    """Outlines of the units that have a shortcut, in the model's present mode."""
    forms = [unit.form for unit in model.stack.built_units()]
    return [outline(form) for form in forms if form.merge != "none"]


def recovered(model: nn.Module, x: Tensor) -> list[tuple[Any, ...]]:
    """Outlines of the units that the inspector finds."""
    return [outline(unit.form) for unit in inspect(model, x, structure_only=True).units]


@pytest.mark.parametrize("name", PAIRS)
def test_forms(name: str) -> None:
    model = build(name)
    x = batch_for(model)
    twin = erased(model)
    for mode in (True, False):
        model.train(mode)
        twin.train(mode)
        expected = declared(model)
        assert ("@plain" in name) == (not expected)
        assert recovered(model, x) == expected
        assert recovered(twin, x) == expected


def test_the_twin_says_nothing_and_computes_the_same() -> None:
    model = build("resnet20@preact").eval()
    twin = erased(model)
    assert {type(m).__name__ for m in twin.modules()} == {"M"}
    words = {part for name, _ in twin.named_modules() for part in name.split(".") if part}
    assert all(word[0] == "m" and word[1:].isdigit() for word in words)
    assert all(key.rpartition(".")[2][0] in "pb" for key in twin.state_dict())
    x = batch_for(model)
    assert torch.equal(model(x), twin(x))
    assert twin.state_dict().keys().isdisjoint(model.state_dict())


def test_a_wrong_declaration_would_be_noticed() -> None:
    post, pre = build("resnet20@post_act"), build("resnet20@preact")
    x = batch_for(post)
    assert recovered(post, x) != declared(pre)
    assert recovered(build("resnet20@scaled(lam=0.5,mu=1)"), x) != declared(build("resnet20@scaled(lam=1,mu=0.1)"))
