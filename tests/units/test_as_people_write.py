"""Models in the words of those who write them: each has units that must be found, and nothing that must be told."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import skipway
from skipway.errors import SkipwayError

D = 16


class Block(nn.Module):
    """A pre-norm feed-forward unit."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 32), nn.Linear(32, D)
        self.act = nn.GELU() if act is None else act

    def branch(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.act(self.up(self.norm(x))))
        return out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def net(make: Any = Block, depth: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[make() for _ in range(depth)], nn.LayerNorm(D), nn.Linear(D, 2))


def inspected(model: nn.Module, batch: Any, **options: Any) -> skipway.Inspection:
    return skipway.inspect(model, batch, **options)


def told(found: skipway.Inspection) -> set[str]:
    return {finding.rule for finding in found.findings if finding.severity != "info"}


# Operations that write and give something back ------------------------------------------------------------------------


@torch.library.custom_op("skipway_tests::attend_with_cache", mutates_args={"cache"})
def attend_with_cache(x: Tensor, cache: Tensor) -> Tensor:
    cache.copy_(x)
    return torch.tanh(x)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 32))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = attend_with_cache(x, self.cache)
        return out


@pytest.mark.parametrize("act", [nn.ReLU, nn.RReLU, Attend])
def test_what_is_written_beside_a_result_does_not_hide_it(act: Any) -> None:
    model = net(lambda: Block(act())).train().requires_grad_(act is not Attend)
    found = inspected(model, torch.randn(8, D))
    assert [unit.path for unit in found.units] == ["0", "1", "2", "3"]
    assert all(unit.proof_error is not None and unit.proof_error < 100 for unit in found.units)


def test_quantisation_aware_training() -> None:
    from torch.ao import quantization

    model = net(lambda: Block(nn.ReLU())).train()
    for module in model.modules():
        if not isinstance(module, nn.LayerNorm):
            module.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    with pytest.warns():  # PyTorch tells that these functions have moved
        quantization.prepare_qat(model, inplace=True)
    assert len(inspected(model, torch.randn(8, D)).units) == 4


# Sums of three --------------------------------------------------------------------------------------------------------


class Adapted(Block):
    """A serial adapter behind the branch, closed at the start."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.adapter = nn.Sequential(nn.Linear(D, 4), nn.GELU(), nn.Linear(4, D))
        nn.init.zeros_(self.adapter[2].weight)
        nn.init.zeros_(self.adapter[2].bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.branch(x)
        if self.spelling == "x + y + A(y)":
            return x + y + self.adapter(y)
        if self.spelling == "y + A(y) + x":
            return y + self.adapter(y) + x
        return x + (y + self.adapter(y))


@pytest.mark.parametrize("spelling", ["x + y + A(y)", "y + A(y) + x", "x + (y + A(y))"])
def test_the_stream_of_three_is_the_first_of_them(spelling: str) -> None:
    model = net(lambda: Adapted(spelling))
    x = torch.randn(8, D)
    found = inspected(model, x)
    outer = [u for u in found.units if u.level == 0]
    assert len(outer) == 4
    for k, unit in enumerate(outer):
        before = model[:k](x)
        assert unit.numbers.stream_rms == pytest.approx(before.square().mean().sqrt().item(), rel=1e-4)
        assert unit.numbers.branch_rms == pytest.approx(model[k].branch(before).square().mean().sqrt().item(), rel=1e-4)
    assert not told(found)
    # The adapter alone is zero; where it is a unit of its own that may be said, of the block it may not.
    assert not [f for f in found.findings if f.rule == "zero-init" and f.path in {u.path for u in outer}]


class Lora(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + x @ self.a.t() @ self.b.t()
        return out


def test_a_zero_beside_the_ordinary_way_is_no_zero_of_the_unit() -> None:
    class Tuned(Block):
        def __init__(self) -> None:
            super().__init__()
            self.down = Lora(self.down)  # type: ignore[assignment]

    found = inspected(net(Tuned), torch.randn(8, D))
    assert [f.rule for f in found.findings] == []
    assert all(unit.numbers.branch_rms for unit in found.units)


# Gradients in the forward pass ----------------------------------------------------------------------------------------


class Energy(nn.Module):
    """Forces are the gradient of an energy."""

    def __init__(self, *, enabled: bool = False) -> None:
        super().__init__()
        self.enabled = enabled
        self.entry, self.body, self.head = nn.Linear(3, D), net(depth=3)[:4], nn.Linear(D, 1)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(self.enabled or torch.is_grad_enabled()):
            positions.requires_grad_(True)
            energy = self.head(self.body(self.entry(positions))).sum()
            return energy, -torch.autograd.grad(energy, positions, create_graph=True)[0]


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("options", [{}, {"structure_only": True, "profile": "fast"}])
def test_a_model_that_differentiates_in_its_forward_pass(enabled: bool, options: dict[str, Any]) -> None:
    found = inspected(Energy(enabled=enabled), torch.randn(5, 3), **options)
    assert [unit.path for unit in found.units] == ["body.0", "body.1", "body.2"]
    if not options:
        assert all(unit.proof_error is not None for unit in found.units)
        assert all(unit.numbers.stream_rms for unit in found.units)
        assert all(unit.numbers.grad_stream for unit in found.units)


def test_the_gradient_is_that_of_the_loss_not_the_models_own() -> None:
    model, x = Energy(), torch.randn(5, 3)
    once = inspected(model, x, loss=lambda out: out[1].square().sum())
    tenfold = inspected(model, x, loss=lambda out: 10 * out[1].square().sum())
    for a, b in zip(once.units, tenfold.units, strict=True):
        assert a.numbers.grad_stream is not None
        assert b.numbers.grad_stream == pytest.approx(10 * a.numbers.grad_stream, rel=1e-4)


# Inputs and operators -------------------------------------------------------------------------------------------------


@dataclass
class Points:
    x: Tensor
    edges: Tensor


@dataclass(slots=True)
class Slotted:
    x: Tensor
    edges: Tensor


class Messages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(2 * D, D), nn.SiLU(), nn.Linear(D, D)) for _ in range(3))

    def forward(self, graph: Points | Slotted) -> Tensor:
        a, b = graph.edges
        for layer in self.layers:
            sent = layer(torch.cat([graph.x[a], graph.x[b]], -1))
            graph.x = graph.x + torch.zeros_like(graph.x).index_add_(0, b, sent)
        return graph.x


@pytest.mark.parametrize("kind", [Points, Slotted])
def test_inputs_that_an_object_holds(kind: Any) -> None:
    x = torch.randn(5, D)
    graph = kind(x, torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]))
    found = inspected(Messages(), (graph,))
    assert len(found.units) == 3
    assert all(unit.proof_error is not None and unit.numbers.grad_stream for unit in found.units)
    assert graph.x is x
    assert found.batch == f"{kind.__name__}(float32[5,16], int64[2,5])"


class Rows(Block):
    """Stochastic depth for half of the batch, added back by index."""

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.randperm(len(x))[: len(x) // 2]
        return torch.index_add(x, 0, rows, self.branch(x[rows]), alpha=2.0)


def test_sums_by_index_are_listed() -> None:
    found = inspected(net(Rows), torch.randn(6, D))
    assert [one.path for one in found.unexplained] == ["0", "1", "2", "3"]
    assert all("an index names" in one.reason for one in found.unexplained)


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, D // 2).permute(2, 0, 3, 1, 4)
        attended: Any = flex_attention(q, k, v, score_mod=lambda score, _b, _h, i, j: score + (j - i))
        out: Tensor = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return out


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_operators_that_take_functions() -> None:
    found = inspected(net(Flexible, depth=3), torch.randn(2, 5, D))
    assert len(found.units) == 3
    assert all(unit.proof_error is not None for unit in found.units)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_buffers(layout: Any) -> None:
    class Spread(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(6).to_sparse(layout=layout))

        def branch(self, x: Tensor) -> Tensor:
            return super().branch(torch.sparse.mm(self.adjacency, x))  # type: ignore[attr-defined]

    assert len(inspected(net(Spread), torch.randn(6, D)).units) == 4


def test_nested_tensors_are_refused_in_words() -> None:
    batch = torch.nested.nested_tensor([torch.randn(3, D), torch.randn(5, D)], layout=torch.jagged)
    with pytest.raises(SkipwayError, match=r"a nested .jagged. tensor in the batch") as caught:
        inspected(net(), batch)
    assert "to_padded_tensor" in str(caught.value)


def test_batches_of_vmap_and_packed_sequences_keep_their_numbers() -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(self.net)(x)

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.LSTM(D, D, batch_first=True) for _ in range(2))

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            rnn = nn.utils.rnn
            for layer in self.layers:
                packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
                x = x + rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)[0]
            return x

    mapped = inspected(Mapped(), torch.randn(6, D), loss=lambda out: out.square().sum())
    assert len(mapped.units) == 4
    packed = inspected(Packed(), (torch.randn(2, 5, D), torch.tensor([5, 3])), loss=lambda out: out.square().sum())
    sums = [u for u in packed.units if u.level == 0]  # inside the cells are gated ones
    assert len(sums) == 2
    assert all(u.numbers.stream_rms for u in sums)


# Healthy models -------------------------------------------------------------------------------------------------------


class Detr(nn.Module):
    """Learned queries before PyTorch's own decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(7, D))
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 2, 32, batch_first=True), 6)
        for parameter in self.decoder.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, memory: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.queries.expand(len(memory), -1, -1), memory)
        return out


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_learned_queries(mode: str) -> None:
    torch.manual_seed(0)
    found = inspected(Detr().train(mode == "train"), torch.randn(2, 9, D))
    assert len(found.units) >= 16
    assert "missing-shortcut" not in told(found)


class Ode(nn.Module):
    """A neural ODE, three steps of a classical integrator."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.f = nn.Sequential(nn.Linear(D, 32), nn.Tanh(), nn.Linear(32, D))

    def forward(self, x: Tensor) -> Tensor:
        f, dt = self.f, 1 / 3
        for _ in range(3):
            k1 = f(x)
            if self.how == "midpoint":
                x = x + dt * f(x + dt / 2 * k1)
            elif self.how == "heun":
                x = x + dt / 2 * (k1 + f(x + dt * k1))
            else:
                k2 = f(x + dt / 2 * k1)
                k3 = f(x + dt / 2 * k2)
                x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + f(x + dt * k3))
        return x


@pytest.mark.parametrize("how", ["midpoint", "heun", "rk4"])
def test_integrators(how: str) -> None:
    assert not told(inspected(Ode(how), torch.randn(4, D)))


class Again(Block):
    """A block that mixes the first embedding in anew; in the first block that is the stream itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lambdas = nn.Parameter(torch.tensor([1.0, 0.1]))

    def forward(self, x: Tensor, first: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(self.lambdas[0] * x + self.lambdas[1] * first)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Again() for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        first = x = F.rms_norm(x, (D,))
        for block in self.blocks:
            x = block(x, first)
        return x


def test_a_stream_that_is_mixed_with_its_beginning() -> None:
    assert "missing-shortcut" not in told(inspected(Mixed(), torch.randn(4, 5, D)))


class Momentum(nn.Module):
    """A key encoder without gradients that follows the query encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.query = net()
        self.key = copy.deepcopy(self.query).requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q = self.query(x)
        with torch.no_grad():
            for ours, theirs in zip(self.query.parameters(), self.key.parameters(), strict=True):
                theirs.data = theirs.data * 0.999 + ours.data * 0.001
            k = self.key(y)
        out: Tensor = (q * k).sum(1)
        return out


def test_an_encoder_that_follows_another_is_not_dead() -> None:
    model = Momentum()
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert not told(inspected(model, (torch.randn(4, D), torch.randn(4, D))))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
