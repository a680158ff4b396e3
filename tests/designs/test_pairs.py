"""Designs with two streams: where they open and close, what an inverse gives back, what the inspector sees at depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import skipway
from designs.cases import EACH, batch_for, build
from designs.erase import erased
from skipway.designs import DESIGNS
from skipway.diagnostics.inspect import inspect
from skipway.errors import SkipwayError
from skipway.models import parse_name

HAVING = [design for design in DESIGNS if DESIGNS[design].reversible]


def roles(name: str) -> str:
    """One letter a unit: o one stream, p pair; ( and ) where the pair is opened and closed before it."""
    marks = {"open": "(", "close": ")", "nothing": ""}
    net, design = parse_name(name)
    found = [plan.role for plan in design.plan(net.sites())]
    return "".join(marks[role.before] + ("p" if role.paired else "o") for role in found)


def test_where_the_pair_is() -> None:
    # What is over in a stage stands before its pairs.
    assert roles("resnet20@revnet") == "o(pp)o(pp)o(pp"
    assert roles("resnet26@revnet") == "(pppp)oo(pp)oo(pp"
    assert roles("resnet110@revnet") == "(" + 18 * "p" + 2 * (")oo(" + 16 * "p")
    assert roles("resnet164@revnet") == "oo(" + 16 * "p" + 2 * (")oo(" + 16 * "p")
    assert roles("resnet20@momentum") == "(ppp)o(pp)o(pp"
    # Stages of transformers are for feature maps only: the shape stays throughout.
    assert roles("vit_tiny@revnet") == "(" + 24 * "p"
    assert roles("mlp5@revnet") == "o(pppp"


@pytest.mark.parametrize("design", HAVING)
def test_parameters_are_those_of_preactivation(design: str) -> None:
    with torch.device("meta"):
        for net, other in (("resnet26", "preact"), ("resnet29", "preact"), ("gpt_nano", "pre_norm")):
            ours, theirs = (skipway.create_model(f"{net}@{d}").parameters() for d in (design, other))
            assert sum(p.numel() for p in ours) == sum(p.numel() for p in theirs)


@pytest.mark.parametrize("name", [each for each in EACH if "dense" not in str(each.values[0])])
def test_who_has_an_inverse_says_so(name: str) -> None:
    model = build(name)
    having = {unit.join.reversible for unit in model.stack.built_units() if unit.plan.constant_state}
    assert model.design.reversible == (model.design.id in HAVING)
    assert (True in having) <= model.design.reversible


@pytest.mark.parametrize("name", ["resnet26@revnet", "resnet26@momentum", "gpt_nano@revnet", "mlp8@momentum"])
def test_inverses(name: str) -> None:
    torch.manual_seed(0)
    model = skipway.create_model(name).double()
    x = model.dummy_input(3)
    state: Any = model.stem(x.double() if x.is_floating_point() else x)
    inverted = 0
    with torch.no_grad():
        for unit in model.stack.built_units():
            if unit.transition is not None:
                state, unit.transition = unit.transition(state), None
            behind = unit(state)
            if unit.join.reversible:
                for a, b in zip(tree_leaves(unit.inverse(behind)), tree_leaves(state), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
                inverted += 1
            else:
                with pytest.raises(SkipwayError, match="is not reversible"):
                    unit.inverse(behind)
            state = behind
    assert inverted == sum(unit.plan.role.paired for unit in model.stack.built_units()) > 3


@pytest.mark.parametrize("name", ["resnet26@revnet", "resnet26@momentum", "vit_tiny@revnet", "mlp8@momentum"])
def test_units_are_proved_side_by_side(name: str) -> None:
    torch.manual_seed(0)
    small = {"depth": 2, "width": 24, "image_size": 16} if "vit" in name else {"width": 8} if "resnet" in name else {}
    model = skipway.create_model(name, **small)  # type: ignore[call-overload]
    x = batch_for(model)
    for one in (model, erased(model)):
        found = inspect(one, x).units
        units = [unit for unit in found if unit.kind == "unit"]
        assert [str(unit.form).partition("] ")[2] or str(unit.form) for unit in units] == [
            str(unit.form).partition("] ")[2] or str(unit.form) for unit in model.stack.built_units()
        ]
        assert {unit.level for unit in units} == {0}
        assert all(unit.proof_error is not None and unit.proof_error < 32 for unit in found)
        # Of a momentum unit the velocity's own addition is reported beside it, as a long skip.
        others = {(unit.kind, str(unit.form).partition(" + ")[0]) for unit in found if unit not in units}
        assert others == ({("long_skip", "x' = 0.9·x")} if "momentum" in name else set())
        assert [unit.form.stream for unit in units].count("pair") == (0 if "momentum" in name else roles_of(model))


def roles_of(model: Any) -> int:
    """How many units are declared on a pair."""
    return sum(unit.form.stream == "pair" for unit in model.stack.built_units())


@pytest.mark.parametrize("design", HAVING)
def test_a_unit_alone_is_refused(design: str) -> None:
    with pytest.raises(SkipwayError) as error:
        skipway.Unit(nn.Linear(4, 4), design)
    assert str(error.value) == (
        f"design {design!r} for a unit that stands alone: nobody opens and closes its two streams\n"
        f'expected: a whole stack\ntry: skipway.Stack(branches, "{design}")'
    )


@pytest.mark.parametrize("design", HAVING)
def test_any_number_of_samples_is_exported(design: str) -> None:
    # Two streams that stand one behind the other along the batch must not fix its length.
    net = skipway.create_model(f"mlp3@{design}").eval()
    lengths = ({0: torch.export.Dim("batch", min=1)},)
    program = torch.export.export(net, (net.dummy_input(2),), dynamic_shapes=lengths).module()
    for samples in (1, 5):
        batch = torch.randn_like(net.dummy_input(samples))
        assert torch.allclose(program(batch), net(batch), atol=1e-6)


def test_stacks_of_anybodys_branches() -> None:
    torch.manual_seed(0)
    branches = [nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)).double() for _ in range(3)]
    x = torch.randn(2, 5, 6, dtype=torch.float64)

    def normed(y: Tensor) -> Tensor:
        return nn.functional.layer_norm(y, (6,))

    a = x + branches[0](normed(x))  # of three one is over
    b = a + branches[2](normed(c := a + branches[1](normed(a))))
    stack = skipway.Stack(branches, "revnet").double()
    torch.testing.assert_close(stack(x), normed((b + c) / 2))
    v, y = torch.zeros_like(x), x
    for branch in branches:
        v = 0.25 * v + 0.75 * branch(normed(y))
        y = y + v
    torch.testing.assert_close(skipway.Stack(branches, "momentum(gamma=0.25)").double()(x), normed(y))


def test_features_are_of_one_width() -> None:
    model = skipway.create_model("vit_tiny@revnet", features_only=True, depth=4, width=24, image_size=16)
    x = torch.randn(2, 3, 16, 16)
    assert [tuple(m.shape) for m in model(x)] == 4 * [(2, 17, 24)]
    whole = skipway.create_model("vit_tiny@revnet", depth=4, width=24, image_size=16)
    whole.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(whole.stack.exit.norm1(model(x)[-1]), whole.forward_features(x))  # type: ignore[union-attr]


@pytest.mark.parametrize("gamma", ["0", "1", "-0.5", "nan"])
def test_gammas_that_cannot_be(gamma: str) -> None:
    with pytest.raises(SkipwayError, match=r"a number above 0 and below 1|a finite number"):
        skipway.create_model(f"resnet8@momentum(gamma={gamma})")
