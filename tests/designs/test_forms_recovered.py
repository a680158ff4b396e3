"""What a design says of its units is what the inspector sees in the graph, also where no name says anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from designs.cases import EACH, batch_for, build
from designs.erase import erased
from skipway.designs.momentum import Momentum
from skipway.diagnostics.inspect import inspect
from skipway.form import Op

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


def recovered(model: nn.Module, x: Tensor, *, kind: str | None = None) -> list[tuple[Any, ...]]:
    """Outlines of the units that the inspector finds, of all kinds or one."""
    units = inspect(model, x, structure_only=True).units
    return [outline(unit.form) for unit in units if kind in (None, unit.kind)]


def velocities(model: Net) -> list[tuple[Any, ...]]:
    """Outlines of ``γv + (1−γ)F(x)``, a second addition of each momentum unit but where the velocity is still zero.

    The velocity is a stream of its own that runs around the unit before, hence a long skip.
    """
    design = model.design
    if not isinstance(design, Momentum):
        return []
    forms = [unit.form for unit in model.stack.built_units() if unit.plan.role.paired and unit.plan.role.place]
    return [outline(replace(form, shortcut=(Op("scale", design.gamma),))) for form in forms]


@pytest.mark.parametrize("name", EACH)
def test_forms(name: str) -> None:
    model = build(name)
    x = batch_for(model)
    twin = erased(model)
    for mode in (True, False):
        model.train(mode)
        twin.train(mode)
        expected = declared(model)
        assert ("@plain" in name) == (not expected)
        for one in (model, twin):
            more = velocities(model)
            assert recovered(one, x, kind="long_skip") == more
            assert recovered(one, x, kind="unit" if more else None) == expected


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
