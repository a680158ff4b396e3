"""Units compiled once for each kind: as many graphs as kinds at any depth, the same numbers, names and tools."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import skipway
from designs.cases import PAIRS, SMALL, batch_for, build
from skipway.designs import design_from
from skipway.errors import SkipwayError, UnknownNameError
from skipway.models import PlannedStack
from skipway.models.compiled import compile_model, unit_kinds
from skipway.spec import MEMORY_MODES, RunSpec
from skipway.study.records.record import told_apart_by
from train.runs import open_once, tiny, weights

# The compiler asks tensors in the middle of a net for their gradient, and hides PyTorch's warning from all but us.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.fx import GraphModule

GROWS = ("dense", "densenet")
PAIRS_OF_KINDS = [name for name in PAIRS if not any(word in name for word in GROWS)]
QUICK = ["gpt_nano@pre_norm", "mlp40@highway"]
SOME = ("gpt_nano@pre_norm", "gpt_nano@post_norm", "gpt_nano@revnet")
DEPTHS = {
    "resnet20": (38, 50, 62), "plain20": (38, 50, 62), "resnet164": (56, 74, 92), "resnet18": (18, 34),
    "resnet50": (50, 101, 152), "wrn28_10": (40, 52, 64), "mlp40": (8, 12, 16),
}  # fmt: skip
OTHERS = (4, 6, 8)  # blocks of a transformer
# Pairs of units share a state that is opened and closed with each stage: stages of even and odd length differ, and
# those of published depths are of both.
PARITY = ("resnet18@revnet", "resnet50@revnet")


class Counting:
    """A compiler that runs graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[GraphModule] = []

    def __call__(self, graph: GraphModule, inputs: Any) -> Any:
        self.graphs.append(graph)
        return graph.forward

    def __len__(self) -> int:
        return len(self.graphs)

    def symbols(self) -> int:
        """Numbers that graphs are left open for, such as sizes."""
        nodes = [node for graph in self.graphs for node in graph.graph.nodes if node.op == "placeholder"]
        return sum(isinstance(node.meta["example_value"], torch.SymInt | torch.SymFloat) for node in nodes)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs_of(net: Any, x: Tensor) -> int:
    """Kinds, each as often as its units read states of which other parts need a gradient: the input needs none."""
    seen: set[tuple[int, tuple[bool, ...]]] = set()

    def note(kind: int) -> Any:
        return lambda _unit, args: seen.add((kind, tuple(leaf.requires_grad for leaf in tree_leaves(args[0]))))

    handles = [
        unit.register_forward_pre_hook(note(kind))
        for kind, units in enumerate(unit_kinds(net.stack.built_units()))
        for unit in units
    ]
    net(x)
    for handle in handles:
        handle.remove()
    return len(seen)


def at_depths(name: str) -> list[Any]:
    base = name.partition("@")[0]
    made = []
    for depth in DEPTHS.get(base, OTHERS):
        torch.manual_seed(0)
        made.append(skipway.create_model(name, **{**SMALL[base], "depth": depth}))
    return made


def step(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor | None], dict[str, Tensor]]:
    """Output, gradients and buffers of one training step."""
    torch.manual_seed(3)
    y = model(x)
    torch.manual_seed(4)
    (y * torch.randn(y.shape).to(y)).sum().backward()
    return y.detach(), {k: p.grad for k, p in model.named_parameters()}, dict(model.named_buffers())


def assert_close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


# As many graphs as kinds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        # Of transformers one of each kind of state; the others' kinds are those of their sites too.
        pytest.param(name, marks=[] if name.startswith("mlp40@") or name in SOME else pytest.mark.exhaustive)
        for name in PAIRS_OF_KINDS
    ],
)
def test_kinds_do_not_depend_on_depth(name: str) -> None:
    with torch.device("meta"):
        units = [net.stack.built_units() for net in at_depths(name)]
    assert len({len(unit_kinds(one)) for one in units}) == 1 or name in PARITY
    assert len(unit_kinds(units[-1])) < len(units[-1])


@pytest.mark.parametrize("name", QUICK)
def test_as_many_graphs_as_kinds(name: str) -> None:
    check_graphs(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(set(PAIRS_OF_KINDS) - set(QUICK)))
def test_as_many_graphs_as_kinds_everywhere(name: str) -> None:
    check_graphs(name)


def check_graphs(name: str) -> None:
    for net in at_depths(name):
        backend, x = Counting(), batch_for(net)
        expected = graphs_of(net, x)
        kinds = net.compile_units(backend=backend)
        net(x).sum().backward()
        assert kinds <= len(backend) == expected <= kinds + 1, net
        # No kind is compiled for the sizes of another one.
        assert backend.symbols() == 0, net
        with torch._dynamo.config.patch(error_on_recompile=True):
            net(x).sum().backward()


def test_modes_and_batches() -> None:
    net, backend = build("gpt_nano@pre_norm"), Counting()
    kinds = net.compile_units(backend=backend)
    x = batch_for(net, 8)
    net(x).sum().backward()
    assert len(backend) == kinds
    with torch.no_grad():
        net.eval()(x)
    assert len(backend) == 2 * kinds
    net.train()(x[:5])  # a last, smaller batch
    assert len(backend) == 3 * kinds
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (8, 3, 7):
            net.train()(x[:size]).sum().backward()
            with torch.no_grad():
                net.eval()(x)
    assert len(backend) == 3 * kinds


def test_another_net_starts_anew() -> None:
    # What PyTorch has seen of sizes in one net would leave the graphs of the next open for any size.
    for samples in (4, 6):
        net, backend = build("mlp40@highway"), Counting()
        net.compile_units(backend=backend)
        net(batch_for(net, samples))
        assert backend.symbols() == 0


def test_number_formats_and_layouts() -> None:
    net, backend = build("resnet20"), Counting()
    kinds = net.compile_units(backend=backend)
    net.to(memory_format=torch.channels_last)
    x = batch_for(net).contiguous(memory_format=torch.channels_last)
    found = []
    for one in (net, copy.deepcopy(net)):
        with torch.autocast("cpu", torch.bfloat16):
            found.append(one(x))
        found[-1].float().sum().backward()
    assert len(backend) == kinds
    assert backend.symbols() == 0
    assert found[0].dtype == torch.bfloat16
    assert torch.equal(*found)
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_progress_is_no_reason_to_compile_again() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Waxing(type(design_from("highway"))):  # type: ignore[misc]
        uses_progress = True

        def join(self, plan: Any) -> Any:
            join = super().join(plan)

            class Slow(type(join)):  # type: ignore[misc]
                def write(self, carry: Any, outputs: Any, t: Any) -> Any:
                    return super().write(carry, (outputs[0] * t,), t)

            join.__class__ = Slow
            return join

    sites = build("mlp40@highway").stack.built_units()
    stack = PlannedStack(Waxing(), [unit.plan.site for unit in sites])
    twin = copy.deepcopy(stack)
    backend = Counting()
    stack.compile_units(backend=backend)
    x = torch.randn(4, 16)
    for number in range(5):
        for one in (stack, twin):
            one.progress.fill_(number / 5)
        torch.testing.assert_close(stack(x), twin(x), rtol=0, atol=0)
        if number == 0:
            graphs = len(backend)
    assert len(backend) == graphs


class Branch(nn.Module):
    """A branch of one's own, with a number that another unit has otherwise."""

    def __init__(self, number: float, *, asks: str = "") -> None:
        super().__init__()
        self.fc, self.number, self.asks = nn.Linear(6, 6), number, asks

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        if self.asks == "number":
            return y * 2 if x.dim() == self.number else y
        if self.asks == "values":
            return y * 2 if float(y.detach().sum()) > 0 else y
        return y * self.number


def test_a_number_of_each_unit_costs_one_more_graph() -> None:
    stack, backend = skipway.Stack([Branch(1 / (i + 1)) for i in range(12)]), Counting()
    twin = copy.deepcopy(stack)
    assert stack.compile_units(backend=backend) == 1
    x = torch.randn(2, 6)
    torch.testing.assert_close(stack(x), twin(x), rtol=0, atol=0)
    assert len(backend) == 2


LIMIT_HIT = tuple(
    getattr(torch._dynamo.exc, name)
    for name in ("FailOnRecompileLimitHit", "RecompileLimitExceeded")  # of PyTorch 2.14, and of 2.7
    if hasattr(torch._dynamo.exc, name)
)


def test_nothing_falls_back_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(2, 6)
    stack = skipway.Stack([Branch(i, asks="number") for i in range(12)])
    stack.compile_units(backend="eager")
    with pytest.raises(LIMIT_HIT):
        stack(x)
    stack = skipway.Stack([Branch(i, asks="values") for i in range(2)])
    stack.compile_units(backend="eager")
    with pytest.raises(
        (torch._dynamo.exc.UserError, torch._dynamo.exc.Unsupported),
        match=r"data-dependent|Tensor.item|SKIPPED INLINING",
    ):
        stack(x)
    stack.compile_units(backend="eager", fullgraph=False)
    assert stack(x).isfinite().all()


# The same numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUICK)
def test_the_same_numbers(name: str) -> None:
    check_numbers(name, "aot_eager")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(set(PAIRS_OF_KINDS) - set(QUICK)))
def test_the_same_numbers_everywhere(name: str) -> None:
    check_numbers(name, "eager")
    check_numbers(name, "aot_eager")


def check_numbers(name: str, backend: str) -> None:
    net = build(name).double()
    twin = copy.deepcopy(net)
    net.compile_units(backend=backend)
    x = batch_for(net)
    x = x.double() if x.is_floating_point() else x
    for _ in range(2):
        assert_close(step(net, x), step(twin, x))
    torch.testing.assert_close(net.eval()(x), twin.eval()(x), rtol=1e-12, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler; there is no g++")
@pytest.mark.parametrize("name", ["gpt_nano@pre_norm", "mlp40@highway", "resnet20@post_act", "resnet20@preact"])
def test_inductor(name: str) -> None:
    net = build(name)
    exact = copy.deepcopy(net).double()
    net.compile_units()
    x = batch_for(net)
    (y, grads, _), (expected, references, _) = step(net, x), step(exact, x.double() if x.is_floating_point() else x)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    for key, grad in references.items():
        assert grad is not None
        found = grads[key]
        assert found is not None
        assert (found.double() - grad).abs().max() <= 1e-3 * grad.abs().max() + 1e-5, key


@pytest.mark.parametrize("memory", MEMORY_MODES[1:])
def test_memory_modes(memory: Any) -> None:
    name = {"recompute": "mlp40@post_act", "reversible": "mlp40@revnet"}.get(memory, "gpt_nano@pre_norm")
    net, backend = build(name).double(), Counting()
    twin = copy.deepcopy(net)
    net.set_memory(memory)
    kinds = net.compile_units(backend=backend)
    x = batch_for(net)
    x = x.double() if x.is_floating_point() else x
    for _ in range(2):
        assert_close(step(net, x), step(twin, x))
    # Reversible units run without gradients, behind a unit that opens the state and does not.
    assert len(backend) == (kinds + 1 if memory == "reversible" else graphs_of(twin, x))


def test_checkpoints_of_batch_norms_have_a_graph_that_does_not_count() -> None:
    net, backend = skipway.create_model("resnet8@preact", width=8).double(), Counting()
    twin = copy.deepcopy(net)
    net.set_memory("checkpoint")
    kinds = net.compile_units(backend=backend)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert_close(step(net, x), step(twin, x))
    assert len(backend) == 2 * kinds


def test_auto_memory_is_measured_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    net, backend = build("mlp40@highway"), Counting()
    twin = copy.deepcopy(net)
    net.compile_units(backend=backend)
    monkeypatch.setattr("skipway.models.memory.free_bytes", lambda _: 2**30)
    net.set_memory("auto")
    x = batch_for(net, 16)
    net(x).sum().backward()
    assert net.memory_choice is not None
    assert len(backend) == graphs_of(twin, x)


def test_features() -> None:
    net = skipway.create_model("resnet20@preact", features_only=True, width=8, depth=8)
    twin = copy.deepcopy(net)
    net.compile_units(backend="eager")
    x = torch.randn(2, 3, 16, 16)
    for one, other in zip(net(x), twin(x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_the_whole_net_around_compiled_units_is_one_graph() -> None:
    net, backend = build("gpt_nano@pre_norm").eval(), Counting()
    expected = net(batch_for(net))
    net.compile_units(backend="eager")
    net.compile(backend=backend, fullgraph=True)
    torch.testing.assert_close(net(batch_for(net)), expected, rtol=0, atol=0)
    assert len(backend) == 1


# What is left as it was -----------------------------------------------------------------------------------------------


def compiled_and_twin(name: str) -> tuple[Any, Any, Tensor, Counting]:
    """A net that has run, its eager twin and a batch."""
    torch.manual_seed(0)
    net: Any = skipway.create_model(name, width=8, depth=8) if name.startswith("resnet") else build(name)
    backend = Counting()
    twin = copy.deepcopy(net)
    net.compile_units(backend=backend)
    x = batch_for(net)
    for one in (net, twin):
        one(x).sum().backward()
        one.zero_grad()
    return net, twin, x, backend


def test_names_copies_and_files() -> None:
    net, twin, x, backend = compiled_and_twin("mlp40@highway")
    assert list(net.state_dict()) == list(twin.state_dict())
    assert [type(m) for m in net.modules()] == [type(m) for m in twin.modules()]
    graphs = len(backend)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):  # noqa: S301  # made on the line
        torch._dynamo.reset()
        torch.testing.assert_close(other(x), twin(x), rtol=0, atol=0)
    assert len(backend) == graphs


def test_hooks_on_units_run() -> None:
    net, _, x, backend = compiled_and_twin("mlp40@highway")
    graphs, seen = len(backend), []
    net.stack.units[1].register_forward_hook(lambda *_: seen.append("forward"))
    net.stack.units[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    net(x).sum().backward()
    assert seen == ["forward", "backward"]
    assert len(backend) == graphs


def test_hooks_within_a_unit_are_those_of_its_first_call() -> None:
    net, _, x, backend = compiled_and_twin("mlp40@highway")
    graphs, seen = len(backend), []
    inner = net.stack.units[1].branches[0]
    inner.register_forward_hook(lambda *_: seen.append("late"))
    net(x)
    assert seen == []
    assert len(backend) == graphs
    net.compile_units(backend=backend)
    net(x)
    assert seen == ["late"]


def test_function_transforms_see_operations() -> None:
    net, twin, x, backend = compiled_and_twin("mlp40@highway")
    graphs = len(backend)
    weights = {k: v.detach() for k, v in net.named_parameters()}
    found = []
    for one in (net, twin):

        def loss(weights: Any, one: Any = one) -> Tensor:
            y: Tensor = torch.func.functional_call(one, weights, (x,)).square().mean()
            return y

        found.append([*torch.func.grad(loss)(weights).values(), torch.func.vmap(one)(x.unsqueeze(1))])
    assert_close(*found, 0)
    assert len(backend) == graphs


def test_tools_see_the_net_as_it_is() -> None:
    net, twin, x, backend = compiled_and_twin("resnet20@preact")
    graphs = len(backend)

    def seen(one: Any) -> dict[str, Any]:
        return {k: v for k, v in skipway.inspect(one, x).to_dict().items() if k != "seconds"}

    assert seen(net) == seen(twin)
    changed = []
    for one in (net, twin):
        with skipway.what_if(one, {"stack.units.1": skipway.Alteration(branch=0.5)}):
            changed.append(one(x))
    assert torch.equal(*changed)
    assert not torch.equal(changed[0], twin(x))
    assert len(backend) == graphs


def test_other_tools_run_eagerly() -> None:
    net, twin, x, backend = compiled_and_twin("mlp40@highway")
    graphs = len(backend)

    def metric(output: Tensor) -> Tensor:
        return output.square().mean()

    for tool in (lambda one: skipway.lesion(one, x, metric), lambda one: skipway.path_spectrum(one, x)):
        found = [{k: v for k, v in tool(one).to_dict().items() if k != "seconds"} for one in (net, twin)]
        assert found[0] == found[1]
    histories = []
    for one in (net, twin):
        with skipway.Monitor(one, every=2) as monitor:
            for _ in range(3):
                one.zero_grad()
                one(x).sum().backward()
                monitor.step()
        histories.append([record.summary() for record in monitor.history])
    assert len(histories[0]) == 2
    assert histories[0] == histories[1]
    assert len(backend) == graphs


def test_folded_nets_can_be_compiled() -> None:
    net, backend = build("resnet20").eval(), Counting()
    net.compile_units(backend="eager")
    folded = skipway.fold(net)
    expected = folded(batch_for(net))
    kinds = folded.compile_units(backend=backend)
    torch.testing.assert_close(folded(batch_for(net)), expected, rtol=0, atol=0)
    assert len(backend) == kinds


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet20@dense", "densenet40_12", "densenet121", "gpt_nano@dense", "mlp40@dense"])
def test_growing_states_are_refused(name: str) -> None:
    with pytest.raises(SkipwayError, match=r"(?s)none would share a graph.*net\.compile\(\)"):
        build(name).compile_units(backend="eager")


def test_what_cannot_be_compiled() -> None:
    with pytest.raises(SkipwayError, match=r"(?s)compile='units' of a Linear.*--compile model"):
        compile_model(nn.Linear(2, 2), "units")
    with pytest.raises(UnknownNameError, match="all"):
        compile_model(nn.Linear(2, 2), "all")
    net = build("mlp40@highway")
    for how, memory in (("model", "checkpoint"), ("model", "recompute"), ("units", "recompute")):
        net.set_memory(memory)  # type: ignore[arg-type]
        with pytest.raises(SkipwayError, match=rf"(?s)memory='{memory}' with compile='{how}'.*--memory checkpoint"):
            compile_model(net, how)


# Training -------------------------------------------------------------------------------------------------------------


def test_spec() -> None:
    spec = RunSpec(model="resnet20")
    values = spec.to_dict()
    assert values.pop("compile") == "none"
    assert RunSpec.from_dict(values) == spec
    assert "compile" not in told_apart_by(spec)
    assert told_apart_by(RunSpec(model="resnet20", compile="units"))["compile"] == "units"
    with pytest.raises(UnknownNameError, match="units"):
        RunSpec(model="resnet20", compile="unit")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["units", pytest.param("model", marks=pytest.mark.exhaustive)])
def test_training(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    compile_ = torch.compile
    for word in ("none", how):
        backend = Counting()
        # Inductor takes seconds for each graph.
        monkeypatch.setattr(torch, "compile", lambda *a, b=backend, **k: compile_(*a, **{**k, "backend": b}))
        spec = tiny("mlp6@highway", steps=3, compile=word)  # type: ignore[arg-type]
        run = skipway.fit(spec, out=tmp_path / word, data=open_once(spec.data))
        found[word] = (weights(run), len(backend))
    assert found["none"][0] == found[how][0]
    assert found["none"][1] == 0
    assert found[how][1] > 0


@pytest.mark.exhaustive
def test_two_ranks(tmp_path: Path) -> None:
    child = Path(__file__).parent / "compile_ranks.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(  # noqa: S603  # our own command
        [*launcher, str(child), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for strategy in ("ddp", "fsdp2"):
        eager, compiled = (
            torch.load(tmp_path / f"{strategy}-{how}.pt", weights_only=True) for how in ("eager", "compiled")
        )
        assert compiled.pop("graphs") == compiled.pop("kinds")
        assert eager.pop("graphs") == 0
        del eager["kinds"]
        assert_close([compiled], [eager])
