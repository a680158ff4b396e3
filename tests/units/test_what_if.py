"""What-if runs from outside: keys, nesting, exceptions, wrappers, checkpointing, and what is said when it cannot be."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import checkpoint

import skipway
from skipway import Alteration, SkipwayError, what_if
from skipway.errors import UnknownNameError
from skipway.units.intercept import Plan, intercepted
from skipway.units.locate import locate
from units.case import WIDTH, Block, Stack
from units.hand_edited import ConvNet, Edit, TokenNet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HALF = Alteration(branch=0.5)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def net(join: Callable[[Block, Tensor], Tensor] = lambda b, x: torch.tanh(x + b.branch(x))) -> Stack:
    return Stack(join).double()


def hand(model: Stack, join: Callable[[Block, Tensor], Tensor], at: tuple[int, ...] = (0, 1, 2)) -> Stack:
    """The model with another join in some blocks."""
    twin = copy.deepcopy(model)
    for k in at:
        twin.blocks[k].join = join
    return twin


def scaled(*factors: float) -> Callable[[Block, Tensor], Tensor]:
    def join(b: Block, x: Tensor) -> Tensor:
        f = b.branch(x)
        for factor in factors:
            f = f * factor
        return torch.tanh(x + f)

    return join


def batch(n: int = 4) -> Tensor:
    return torch.randn(n, WIDTH, dtype=torch.float64)


def gradients(model: nn.Module, out: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    out.square().sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=1e-10, atol=1e-12) for k in a)


# Keys -----------------------------------------------------------------------------------------------------------------


def test_a_path_alters_one_unit_and_a_pattern_many() -> None:
    model, x = net(), batch()
    with what_if(model, {"blocks.1": HALF}, x):
        assert torch.allclose(model(x), hand(model, scaled(0.5), (1,))(x))
    with what_if(model, {"blocks.*": HALF, "blocks.1": Alteration(branch=3.0)}, x):
        assert torch.allclose(model(x), hand(hand(model, scaled(0.5), (0, 2)), scaled(3.0), (1,))(x))


@pytest.mark.parametrize("given", ["positional", "keyword", "mixed"])
def test_without_a_batch_the_first_call_shows_the_units(given: str) -> None:
    class Masked(Stack):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x if mask is None else x * mask)

    model, x, mask = Masked(scaled(1.0)).double(), batch(), torch.ones(WIDTH, dtype=torch.float64)
    twin = hand(model, scaled(0.5))
    with what_if(model, {"*": HALF}):
        for size in (4, 7):
            x = batch(size)
            args, kwargs = {
                "positional": ((x, mask), {}), "keyword": ((), {"x": x, "mask": mask}), "mixed": ((x,), {"mask": mask}),
            }[given]  # fmt: skip
            assert torch.allclose(model(*args, **kwargs), twin(x))
    assert torch.equal(model(x), hand(model, scaled(1.0))(x))


def test_found_in_eval_mode_and_trained_with_other_sizes() -> None:
    model = ConvNet().double().eval()
    twin = ConvNet({0: Edit(branch=0.5)}).double()
    twin.load_state_dict(model.state_dict())
    with what_if(model, {"units.0": HALF}, torch.randn(2, 3, 8, 8, dtype=torch.float64)):
        for mode, size in ((True, 3), (False, 1), (True, 5)):
            x = torch.randn(size, 3, 6, 6, dtype=torch.float64)
            out = []
            for m in (model.train(mode), twin.train(mode)):
                torch.manual_seed(3)
                out.append(m(x))
            assert torch.allclose(*out)


def test_shared_modules_are_altered_call_by_call() -> None:
    class Shared(nn.Module):
        def __init__(self, factors: tuple[float, ...] = (1.0, 1.0, 1.0)) -> None:
            super().__init__()
            self.block, self.factors = Block(scaled(1.0)), factors

        def forward(self, x: Tensor) -> Tensor:
            for factor in self.factors:
                x = self.block(x) if factor == 1.0 else scaled(factor)(self.block, x)
            return x

    model, x = Shared().double(), batch()
    twin = Shared((1.0, 0.5, 1.0)).double()
    twin.load_state_dict(model.state_dict())
    with what_if(model, {"block@1": HALF}, x):
        assert torch.allclose(model(x), twin(x))


# Nothing stays --------------------------------------------------------------------------------------------------------


def state(model: nn.Module) -> Any:
    globals_ = (
        dict(module_hooks._global_forward_hooks), dict(module_hooks._global_forward_pre_hooks),
        vars(nn.Module).get("_compiled_call_impl"), checkpointing._CheckpointFrame, checkpointing.CheckpointFunction,
    )  # fmt: skip
    own = [{k: dict(v) if isinstance(v, dict) else v for k, v in vars(m).items()} for m in model.modules()]
    return globals_, own, torch.get_rng_state().tolist()


def test_the_model_is_as_it_was() -> None:
    model, x = net(), batch()
    values = copy.deepcopy(model.state_dict())
    before = state(model)
    with what_if(model, {"*": HALF}, x):
        model(x)
        model.eval()
        model.train()
    assert state(model) == before
    assert all(torch.equal(v, values[k]) for k, v in model.state_dict().items())


class BrokenError(Exception):
    """The model's own failure."""


def test_exceptions_leave_nothing_either() -> None:
    fail = False

    def join(b: Block, x: Tensor) -> Tensor:
        if fail:
            raise BrokenError
        return x + b.branch(x)

    model, x = net(join), batch()
    before = state(model)
    with pytest.raises(BrokenError), what_if(model, {"*": HALF}, x):
        raise BrokenError
    assert state(model) == before
    with what_if(model, {"*": Alteration()}):
        model(x)
        fail = True
        with pytest.raises(BrokenError):
            model(x)
    fail = False
    assert state(model) == before


def test_nesting_on_one_unit_and_on_several() -> None:
    model, x = net(), batch()
    outer, both = hand(model, scaled(0.5)), hand(hand(model, scaled(0.5)), scaled(0.5, 0.3), (1,))
    with what_if(model, {"*": HALF}, x):
        assert torch.allclose(model(x), outer(x))
        with what_if(model, {"blocks.1": Alteration(branch=0.3)}, x):
            assert torch.allclose(model(x), both(x))
            assert same(gradients(model, model(x)), gradients(both, both(x)))
        assert torch.equal(model(x), outer(x))
        with pytest.raises(BrokenError), what_if(model, {"blocks.1": Alteration(branch=0.3)}):
            raise BrokenError
        assert torch.equal(model(x), outer(x))
    assert torch.equal(model(x), Stack.forward(model, x))


def test_nested_alterations_are_made_from_outside_in() -> None:
    """The inner one multiplies the shortcut that the outer one has put there."""
    model, x = TokenNet("gate"), torch.randn(3, 5, 8)
    twin = TokenNet("gate", {1: Edit(shortcut=0.5)})
    twin.load_state_dict(model.state_dict())
    twin.layers[1].kind = "parallel"  # any kind whose shortcut is x itself would do: replaced below
    unit = model.layers[1]

    def edited(v: Tensor, _: Edit) -> Tensor:
        g = torch.sigmoid(unit.gate(v))
        return torch.tanh(0.5 * v + (1 - g) * unit.mlp(v))

    twin.layers[1].edited = edited
    with (
        what_if(model, {"layers.1": Alteration(shortcut="identity")}, x),
        what_if(model, {"layers.1": Alteration(shortcut=0.5)}, x),
    ):
        assert torch.allclose(model(x), twin(x), atol=1e-6)


def test_norms_moved_outside_and_activations_skipped_inside() -> None:
    """The stream that the outer alteration normalises is the one that the inner one leaves."""
    model, x = TokenNet("post_norm").double(), torch.randn(3, 5, 8, dtype=torch.float64)
    twin = TokenNet("post_norm", {0: Edit(after="skip"), 1: Edit(norm="into_branch")}).double()
    twin.load_state_dict(model.state_dict())
    with (
        what_if(model, {"layers.1": Alteration(norm="into_branch")}, x),
        what_if(model, {"layers.0": Alteration(after="skip")}, x),
    ):
        assert same(gradients(model, model(x)), gradients(twin, twin(x)))


def test_a_stream_is_kept_no_longer_than_it_is_needed() -> None:
    model, x = TokenNet("post_norm").double(), torch.randn(3, 5, 8, dtype=torch.float64)
    streams: list[weakref.ref[Tensor]] = []
    alive: list[list[bool]] = []

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        gc.collect()
        alive.append([r() is not None for r in streams])
        streams.append(weakref.ref(args[0]))

    with torch.no_grad(), what_if(model, {"*": Alteration(norm="into_branch")}, x):
        handles = [layer.register_forward_pre_hook(note) for layer in (*model.layers, model.head)]
        model(x)
    for handle in handles:
        handle.remove()
    # What the caller of a layer holds it holds till the next value has its name.
    assert alive == [[], [False], [False, False], [False, False, False]]


# Training -------------------------------------------------------------------------------------------------------------


def test_gradient_accumulation() -> None:
    model = net()
    twin = hand(model, scaled(0.5))
    parts = [batch(3), batch(5)]
    with what_if(model, {"*": HALF}, parts[0]):
        for part in parts:
            model(part).square().sum().backward()
    for part in parts:
        twin(part).square().sum().backward()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(torch.allclose(p.grad, q.grad) for p, q in pairs if p.grad is not None)
    assert model.blocks[0].branch.inner.weight.grad is not None


def test_autocast() -> None:
    model, x = net().float(), batch().float()
    twin = hand(model, scaled(0.5))
    with torch.autocast("cpu", torch.bfloat16):
        with what_if(model, {"*": HALF}):
            out = model(x)
        expected = twin(x)
    assert out.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(out, expected)
    assert same(gradients(model, out.float()), gradients(twin, expected.float()))


def test_no_grad_and_inference_mode() -> None:
    model, x = net(), batch()
    expected = hand(model, scaled(0.5))(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), what_if(model, {"*": HALF}):
            assert torch.allclose(model(x), expected)


CHANGES = {
    "branch": Alteration(branch=0.5),
    "gradient": Alteration(branch_gradient=0.5),
    "after": Alteration(after="skip"),
    "shortcut": Alteration(shortcut=0.7),
    "norm": Alteration(norm="into_branch"),
}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpointed_parts_are_recomputed_alike(reentrant: bool, early_stop: bool, change: str) -> None:
    class Checkpointed(TokenNet):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.embed(x))
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return self.head(x.mean(1))

    model = Checkpointed("post_norm").double()
    plain = TokenNet("post_norm").double()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    with what_if(plain, {"*": CHANGES[change]}, x):
        expected = gradients(plain, plain(x))
    stop = nullcontext() if reentrant else checkpointing.set_checkpoint_early_stop(early_stop)
    with stop:
        with what_if(model, {"*": CHANGES[change]}, x):
            out = model(x)
            inside = gradients(model, model(x))
        after = gradients(model, out)  # the backward pass, and so the recomputation, when the context has been left
    assert same(inside, expected)
    assert same(after, expected)
    assert not same(gradients(model, model(x)), expected)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_identity_where_x_is_made_before_the_checkpointed_part() -> None:
    class Checkpointed(TokenNet):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.embed(x))
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=True)
            return self.head(x.mean(1))

    model, plain = Checkpointed("gate").double(), TokenNet("gate").double()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    found = []
    for m in (model, plain):
        with what_if(m, {"*": Alteration(shortcut="identity")}, x):
            found.append(gradients(m, m(x)))
    assert same(*found)


def test_own_recomputing_models() -> None:
    x = torch.randn(2, 3, 16, 16)
    found = []
    for memory in ("keep", "recompute"):
        torch.manual_seed(5)
        model = skipway.create_model("resnet20", memory=memory)
        with what_if(model, {"*": HALF}, x):
            found.append(gradients(model, model(x)))
    assert all(torch.allclose(found[0][k], found[1][k], rtol=1e-4, atol=1e-6) for k in found[0])


# Wrappers -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # torch's own, about the one process
def test_distributed_data_parallel(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        model, x = net(), batch()
        twin = hand(model, scaled(0.5))
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        for given in (wrapped, model):
            with what_if(given, {"*": HALF}):
                out = wrapped(x)
            assert same(gradients(model, out), gradients(twin, twin(x)))
    finally:
        torch.distributed.destroy_process_group()


def test_compiled_models_run_eagerly_and_altered() -> None:
    model, x = net(), batch()
    expected, plain = hand(model, scaled(0.5))(x), model(x)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    for given in (compiled, model):
        with what_if(given, {"*": HALF}, x):
            assert torch.allclose(compiled(x), expected)
            assert torch.allclose(model(x), expected)
            assert torch.allclose(torch.compile(model, backend="eager")(x), expected)
        assert torch.allclose(compiled(x), plain)
    model.compile(backend="eager")
    with what_if(model, {"*": HALF}, x):
        assert torch.allclose(model(x), expected)
    assert torch.allclose(model(x), plain)


def test_a_copy_made_meanwhile_is_not_altered() -> None:
    model, x = net(), batch()
    plain = model(x)
    with what_if(model, {"*": HALF}, x):
        assert torch.equal(copy.deepcopy(model)(x), plain)


def test_inspect_within_shows_the_altered_model() -> None:
    model, x = net(), batch()
    with what_if(model, {"*": Alteration(after="skip")}, x):
        assert [u.form.equation() for u in skipway.inspect(model, x).units] == ["x' = x + Linear·ReLU·Linear(x)"] * 3


# What cannot be done --------------------------------------------------------------------------------------------------


def refusal(model: nn.Module, changes: Any, x: Any) -> str:
    with pytest.raises(SkipwayError) as caught, what_if(model, changes, x):
        model(x)
    return str(caught.value)


def test_unknown_keys() -> None:
    model, x = net(), batch()
    with pytest.raises(UnknownNameError) as caught, what_if(model, {"block.1": HALF}, x):
        pass
    assert str(caught.value) == (
        "unknown unit 'block.1'\nexpected: did you mean 'blocks.1' or 'blocks.2' or 'blocks.0'?"
    )
    with pytest.raises(UnknownNameError) as caught, what_if(model, {"layers.*": HALF}):
        model(x)
    assert str(caught.value) == "unknown unit 'layers.*'\nexpected: one of: blocks.0, blocks.1, blocks.2"
    assert refusal(model, {"*": HALF, "blocks.*": HALF}, x) == (
        "unit 'blocks.0' is matched by two patterns, '*' and 'blocks.*'\n"
        "expected: one alteration for each unit\n"
        "try: a key 'blocks.0' of its own"
    )
    assert refusal(model, {"*": 0.5}, x) == (
        "changes['*'] is of type float\n"
        "expected: a skipway.Alteration\n"
        "try: what_if(model, {'*': skipway.Alteration(branch=0.5)})"
    )
    assert refusal(nn.Linear(WIDTH, WIDTH).double(), {"*": HALF}, x) == (
        "no residual units were found in Linear on float64[4,16]\n"
        "expected: a model with units\n"
        "try: skipway.inspect(model, batch) says what was seen instead"
    )


NUMBER = "a finite number: what the branch is multiplied by, 1.0 to keep it"


@pytest.mark.parametrize(
    ("fields", "given", "expected"),
    [
        ({"branch": float("nan")}, "branch=nan", NUMBER),
        ({"branch": None}, "branch=None", NUMBER),
        ({"branch_gradient": "no"}, "branch_gradient='no'", "a finite number, or None to keep the gradient"),
        ({"shortcut": "off"}, "shortcut='off'", "'keep', 'identity' or a finite number: what h(x) is multiplied by"),
        ({"after": "off"}, "after='off'", "'keep' or 'skip'"),
        ({"norm": True}, "norm=True", "'keep' or 'into_branch'"),
        ({"dropout": 0.0}, "dropout=0.0", "'keep' or 'off'"),
    ],
    ids=str,
)
def test_alterations_that_are_none(fields: dict[str, Any], given: str, expected: str) -> None:
    with pytest.raises(SkipwayError) as caught:
        Alteration(**fields)
    assert str(caught.value) == f"Alteration({given})\nexpected: {expected}"


LOOK = "\ntry: skipway.inspect(model, batch), which shows the formula of each unit"


def test_nothing_to_alter() -> None:
    model, x = net(lambda b, v: v + b.branch(v)).eval(), batch()
    assert refusal(model, {"blocks.0": Alteration(after="skip")}, x) == (
        "unit 'blocks.0' has no activation and no norm after the merge\nexpected: a unit with one" + LOOK
    )
    assert refusal(model, {"blocks.0": Alteration(norm="into_branch")}, x) == (
        "unit 'blocks.0' has no norm after the merge\nexpected: a post-norm unit" + LOOK
    )
    assert refusal(model, {"blocks.0": Alteration(shortcut="identity")}, x) == (
        "the shortcut of unit 'blocks.0' is the identity already\nexpected: a unit with another one" + LOOK
    )
    assert refusal(model, {"blocks.0": Alteration(dropout="off")}, x) == (
        "unit 'blocks.0' has no dropout on its shortcut or after its merge (found in eval mode)\n"
        "expected: a unit with one\n"
        "try: model.train() before what_if, so that dropout is seen"
    )
    assert refusal(model, {"*": Alteration(branch=0.5, after="skip")}, x) == (
        "none of the 3 units that '*' matches can be altered so: "
        "unit 'blocks.0' has no activation and no norm after the merge\nexpected: a unit with one" + LOOK
    )


def test_shapes_that_do_not_fit() -> None:
    class Wider(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, 1, 1)
            self.project = nn.Conv2d(3, 6, 1, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.project(x) + self.conv2(torch.relu(self.conv1(x)))

    assert refusal(Wider(), {"*": Alteration(shortcut="identity")}, torch.randn(2, 3, 8, 8)) == (
        "the shortcut of unit '<root>' cannot be made identity: x is (2, 3, 8, 8), h(x) is (2, 6, 4, 4)\n"
        "expected: a unit whose x has the shape of h(x)\n"
        "try: leave this unit out of the keys"
    )


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


def test_inside_a_custom_autograd_function() -> None:
    """Its forward pass can be altered, its backward pass cannot."""
    model, x = net(lambda b, v: _Add.apply(v, b.branch(v))), batch()
    assert refusal(model, {"blocks.0": HALF}, x) == (
        "add #0 in 'blocks.0' runs inside the autograd function _Add, whose backward pass would not follow "
        "an alteration\n"
        "expected: an alteration elsewhere, or calls without gradients\n"
        "try: with torch.no_grad(): model(...)"
    )
    with torch.no_grad(), what_if(model, {"blocks.0": HALF}, x):
        assert torch.allclose(model(x), hand(model, lambda b, v: v + 0.5 * b.branch(v), (0,))(x))


@pytest.mark.filterwarnings("ignore")  # scripting is deprecated
def test_scripted_joins_are_refused() -> None:
    join = torch.jit.script(_scripted)
    model, x = net(lambda b, v: join(v, b.branch(v))), batch()
    assert refusal(model, {"blocks.0": HALF}, x) == (
        "the branch of unit 'blocks.0' cannot be altered: it is joined inside scripted code or a custom autograd "
        "function, where no torch function call can be altered\n"
        "expected: a unit that is spelled otherwise" + LOOK
    )
    assert refusal(model, {"blocks.0": Alteration(after="skip")}, x) == (
        "the activation after the merge of unit 'blocks.0' cannot be altered: it runs inside scripted code or a custom "
        "autograd function\nexpected: a unit that is spelled otherwise" + LOOK
    )


def _scripted(a: Tensor, b: Tensor) -> Tensor:
    return torch.relu(a + b)


def test_a_call_that_goes_another_way() -> None:
    way = "add"

    def join(b: Block, x: Tensor) -> Tensor:
        if way == "add":
            return x + b.branch(x)
        return x.clone().add_(b.branch(x)) if way == "in place" else b.branch(x)

    model, x = net(join), batch()
    with what_if(model, {"blocks.1": HALF}, x):
        model(x)
        for other in ("none", "in place"):
            way = other
            with pytest.raises(SkipwayError) as caught:
                model(x)
            assert str(caught.value) == (
                "unit 'blocks.1' was not met in this call: add #0 in 'blocks.1' did not run\n"
                "expected: calls that run the same code as the one in which the units were found\n"
                "try: batch=, with a batch that takes the same way through the model"
            )
        way = "add"
        assert torch.allclose(model(x), hand(model, lambda b, v: v + 0.5 * b.branch(v), (1,))(x))


def test_a_stream_that_is_overwritten() -> None:
    def join(b: Block, x: Tensor) -> Tensor:
        f, h = b.branch(x), x * 0.5
        x.zero_()
        return torch.add(h, f)

    class Overwriting(Stack):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return super().forward(x)

    model, x = Overwriting(join).double(), batch()
    assert refusal(model, {"blocks.1": Alteration(shortcut="identity")}, x) == (
        "the shortcut's x of unit 'blocks.1' is overwritten in place before it is needed\n"
        "expected: a model that does not write to the stream between the two"
    )


def test_several_devices() -> None:
    model = nn.DataParallel(net())
    model.device_ids = [0, 1]
    assert refusal(model, {"*": HALF}, batch()) == (
        "DataParallel over 2 devices: it runs copies of the model\n"
        "expected: the model itself on one device, or DistributedDataParallel\n"
        "try: model.module"
    )


# The machinery below --------------------------------------------------------------------------------------------------


def test_an_edit_of_ones_own() -> None:
    """The example in the module's docstring, with arithmetic aside that would otherwise shift the counts."""
    model, x = net(), batch()
    located = locate(model, x)
    unit = located.units()["blocks.1"]
    made = located.made(unit.candidate.join)
    assert made is not None
    assert made.address is not None
    seen = []

    def halved(run: Any, go_on: Any, func: Any, args: Any, kwargs: Any) -> Any:
        with run.aside():
            half = torch.add(args[1], torch.zeros(())) * 0.5
            nn.Linear(2, 2)(torch.zeros(1, 2))
        return go_on(args[0], half, **kwargs)

    def looked(run: Any, result: Tensor) -> None:
        seen.append(result.detach())

    plan = Plan(edits={made.address: [halved]}, looks={made.address: [looked]}, names={made.address: "it"})
    with intercepted(model, plan):
        assert torch.allclose(model(x), hand(model, scaled(0.5), (1,))(x))
    assert len(seen) == 1
    assert located.units().keys() == {"blocks.0", "blocks.1", "blocks.2"}


def test_location_within_is_that_of_the_model_itself() -> None:
    model, x = net(), batch()
    plain = locate(model, x, proofs=True)
    with what_if(model, {"*": Alteration(after="skip")}, x):
        within = locate(model, x, proofs=True)
    assert [u.form for u in within.described] == [u.form for u in plain.described]
    assert [within.made(u.end) for u in within.described] == [plain.made(u.end) for u in plain.described]


def test_the_first_model_that_is_compiled_within_is_altered() -> None:
    # In a process of its own: nothing was compiled there yet.
    code = """
import torch
from torch import nn
from skipway import Alteration, what_if

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.f(x))

model, x = nn.Sequential(nn.Linear(8, 8), Block(), Block()), torch.randn(2, 8)
original = torch.compile
with what_if(model, {"1": Alteration(branch=0.0)}, batch=x):
    seen = torch.compile(model, backend="eager")(x)
assert torch.equal(seen, model[2](model[0](x)))
assert torch.compile is original
assert torch.equal(torch.compile(model, backend="eager")(x), model(x))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)  # noqa: S603  # our own text


def test_calls_of_other_threads_meanwhile_are_not_altered() -> None:
    inside, done = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(8, 8)
            self.waits = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.waits and threading.current_thread() is threading.main_thread():
                inside.set()
                done.wait(30)
            return x + torch.tanh(self.f(x))

    model, x = Waiting(), torch.randn(2, 8)
    plain, seen = model(x), []

    def other() -> None:
        inside.wait(30)
        seen.append(model(x))
        done.set()

    with what_if(model, {"*": Alteration(branch=0.0)}, batch=x):
        model.waits = True
        thread = threading.Thread(target=other)
        thread.start()
        altered = model(x)
        thread.join()
    assert torch.equal(altered, x)
    assert torch.equal(seen[0], plain)
