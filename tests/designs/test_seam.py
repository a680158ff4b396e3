"""The seam holds designs that are not written yet: each fitted to it here and checked against its formula in float64.

Shapes: N batch, C channels, H and W image, T tokens, D width, S streams.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from skipway.blocks import AttentionBlock, Conv, ConvBlock, LayerBlock, MLPBlock, Norm, Part, activation, basic
from skipway.designs import BranchPlan, Claims, Design, Join, ParameterRule, Site, UnitPlan
from skipway.designs._seam import forms_by_mode
from skipway.form import UnitForm
from skipway.models import PlannedStack
from skipway.spec import OptimizerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

D = 6
LN = Norm(kind="layer")


@dataclass(frozen=True, kw_only=True)
class Witness(Design):
    """One unit a site, the branch's slots given by `slots`."""

    stream_kind: str = "single"

    def slots(self, site: Site) -> dict[str, tuple[Part, ...]]:
        return {}

    def branches(self, site: Site) -> tuple[BranchPlan, ...]:
        return (BranchPlan(block=site.block, slots=self.slots(site)),)

    def plan(self, sites: Sequence[Site]) -> tuple[UnitPlan, ...]:
        form = UnitForm(stream=self.stream_kind)
        return tuple(
            UnitPlan(
                site=site, branches=self.branches(site), forms=forms_by_mode(lambda _: form),
                in_width=site.block.in_width, out_width=site.block.out_width, constant_state=True,
            )
            for site in sites
        )  # fmt: skip

    def claims(self) -> Claims:
        return Claims(identity_at_init=False, warm_up=False, parameters="")


class Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def layers(count: int, width: int = D) -> list[Site]:
    block = LayerBlock(reads=width, writes=width, act="tanh")
    return [
        Site(block=block, index=i, count=count, first=i == 0, last=i == count - 1, norm=LN, act="tanh")
        for i in range(count)
    ]


def stack(design: Design, sites: Sequence[Site]) -> PlannedStack:
    torch.manual_seed(0)
    built = PlannedStack(design, sites).double()
    design.init_(built.built_units())
    return built


def branch(built: PlannedStack, index: int, which: int = 0) -> nn.Module:
    return built.built_units()[index].branches[which]


X = torch.randn(3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# --- RevNet: a pair; two couplings a block, each a unit -----------------------------------------------------------


class Coupling(Join):
    def read(self, state: Any, t: Tensor | None) -> Any:
        return ((state[1],),), state

    def write(self, carry: Any, outputs: Any, t: Tensor | None) -> Any:
        return carry[1], carry[0] + outputs[0]

    def inverse(self, state: Any, branches: nn.ModuleList, t: Tensor | None) -> Any:
        return state[1] - branches[0](state[0]), state[0]


class RevNet(Witness):
    stream_kind = "pair"

    def entry(self, plans: Any) -> nn.Module:
        return Call(lambda x: x.chunk(2, -1))

    def exit(self, plans: Any) -> nn.Module:
        return Call(lambda pair: torch.cat(pair, -1))

    def join(self, plan: UnitPlan) -> Join:
        return Coupling()


def test_revnet_and_its_inverse() -> None:
    built = stack(RevNet(), layers(4, D // 2))
    x1, x2 = X.chunk(2, -1)
    for i in (0, 2):
        y1 = x1 + branch(built, i)(x2)
        x1, x2 = y1, x2 + branch(built, i + 1)(y1)
    torch.testing.assert_close(built(X), torch.cat((x1, x2), -1), rtol=0, atol=0)
    state: Any = (x1, x2)
    for unit in reversed(built.built_units()):
        state = unit.inverse(state)
    torch.testing.assert_close(torch.cat(state, -1), X, rtol=1e-13, atol=1e-13)


# --- Hyper-connections: S streams; equals pre-norm at initialisation ------------------------------------------------


class HyperJoin(Join):
    def __init__(self, index: int, streams: int) -> None:
        super().__init__()
        self.read_from = nn.Parameter(torch.eye(streams)[index % streams])
        self.mix = nn.Parameter(torch.eye(streams))
        self.write_to = nn.Parameter(torch.ones(streams))

    def read(self, state: Tensor, t: Tensor | None) -> Any:
        return ((torch.einsum("s,nsd->nd", self.read_from, state),),), state

    def write(self, carry: Tensor, outputs: Any, t: Tensor | None) -> Tensor:
        return torch.einsum("sr,nsd->nrd", self.mix, carry) + self.write_to[:, None] * outputs[0][:, None]


class HyperConnections(Witness):
    stream_kind = "streams(4)"

    def slots(self, site: Site) -> dict[str, tuple[Part, ...]]:
        return {"start": site.norm.part()}

    def entry(self, plans: Any) -> nn.Module:
        return Call(lambda x: x[:, None].expand(-1, 4, -1))

    def exit(self, plans: Any) -> nn.Module:
        return Call(lambda streams: streams.sum(1))

    def join(self, plan: UnitPlan) -> Join:
        return HyperJoin(plan.site.index, 4)


def test_hyper_connections() -> None:
    built = stack(HyperConnections(), layers(5))
    plain = X
    for i in range(5):
        plain = plain + branch(built, i)(plain)
    torch.testing.assert_close(built(X), 4 * plain)
    streams = X[:, None].repeat(1, 4, 1)
    for i, unit in enumerate(built.built_units()):
        join = unit.join
        assert isinstance(join, HyperJoin)
        with torch.no_grad():
            for parameter in join.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        out = branch(built, i)(join.read_from @ streams)
        streams = join.mix.T @ streams + join.write_to[None, :, None] * out[:, None]
    torch.testing.assert_close(built(X), streams.sum(1))


# --- Attention residuals: a history, no additive stream -------------------------------------------------------------


class DepthAttention(Join):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width))
        self.norm = nn.RMSNorm(width)

    def mixture(self, past: tuple[Tensor, ...]) -> Tensor:
        values = torch.stack(past)
        return ((self.norm(values) @ self.query).softmax(0)[..., None] * values).sum(0)

    def read(self, state: Any, t: Tensor | None) -> Any:
        return ((self.mixture(state),),), state

    def write(self, carry: Any, outputs: Any, t: Tensor | None) -> Any:
        return (*carry, outputs[0])

    forward = mixture


class AttentionResiduals(Witness):
    stream_kind = "history"

    def entry(self, plans: Any) -> nn.Module:
        return Call(lambda x: (x,))

    def exit(self, plans: Any) -> nn.Module:
        return DepthAttention(plans[-1].out_width)

    def join(self, plan: UnitPlan) -> Join:
        return DepthAttention(plan.site.block.in_width)


def test_attention_residuals() -> None:
    built = stack(AttentionResiduals(), layers(3))
    past = [X]
    for i in range(3):
        past.append(branch(built, i)(torch.stack(past).mean(0)))
    torch.testing.assert_close(built(X), torch.stack(past).mean(0))
    queries = [unit.join.query for unit in built.built_units()]
    past = [X]
    with torch.no_grad():
        for i, query in enumerate(queries):
            query.normal_()
            scores = torch.stack(
                [
                    (query * v * (v.square().mean(-1, keepdim=True) + torch.finfo(v.dtype).eps).rsqrt()).sum(-1)
                    for v in past
                ]
            )
            weights = scores.exp() / scores.exp().sum(0)
            past.append(branch(built, i)(sum(w[:, None] * v for w, v in zip(weights, past, strict=True))))
    torch.testing.assert_close(built(X), torch.stack(past).mean(0))


# --- MUDD: queries, keys, values and the residual each read their own mix of the history ----------------------------


class FourPorts(Join):
    def __init__(self, seen: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, seen))

    def read(self, state: Any, t: Tensor | None) -> Any:
        q, k, v, r = torch.einsum("ps,s...->p...", self.weights, torch.stack(state))
        return ((q, k, v),), (state, r)

    def write(self, carry: Any, outputs: Any, t: Tensor | None) -> Any:
        return (*carry[0], carry[1] + outputs[0])


class Mudd(Witness):
    stream_kind = "history"

    def slots(self, site: Site) -> dict[str, tuple[Part, ...]]:
        return {"start": site.norm.part()}

    def entry(self, plans: Any) -> nn.Module:
        return Call(lambda x: (x,))

    def exit(self, plans: Any) -> nn.Module:
        return Call(lambda past: past[-1])

    def join(self, plan: UnitPlan) -> Join:
        return FourPorts(plan.site.index + 1)


def naive_attention(module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Head by head, after the norm at the start."""
    heads, outs = module.heads, []
    parts = [
        torch.nn.functional.linear(module.start(x), w, b).chunk(heads, -1)
        for x, w, b in zip((q, k, v), module.qkv.weight.chunk(3), module.qkv.bias.chunk(3), strict=True)
    ]
    for query, key, value in zip(*parts, strict=True):
        outs.append((query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value)
    return module.out(torch.cat(outs, -1))


TOKENS = torch.randn(2, 5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
ATTENTION = AttentionBlock(reads=D, writes=D, width=D, heads=2)


def test_mudd_four_ports() -> None:
    sites = [Site(block=ATTENTION, index=i, count=2, norm=LN) for i in range(2)]
    built = stack(Mudd(), sites)
    past = [TOKENS]
    for i, unit in enumerate(built.built_units()):
        q, k, v, r = (sum(w * x for w, x in zip(row, past, strict=True)) for row in unit.join.weights)
        past.append(r + naive_attention(branch(built, i), q, k, v))
    torch.testing.assert_close(built(TOKENS), past[-1])


# --- Shake-Shake: two branches, backward weights independent of the forward ones -------------------------------------


class Shake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, f: Tensor, g: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        ctx.beta = beta
        return alpha * f + (1 - alpha) * g

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.beta * grad, (1 - ctx.beta) * grad, None, None


class ShakeJoin(Join):
    def read(self, state: Tensor, t: Tensor | None) -> Any:
        return ((state,), (state,)), state

    def write(self, carry: Tensor, outputs: Any, t: Tensor | None) -> Tensor:
        if not self.training:
            return carry + (outputs[0] + outputs[1]) / 2
        alpha, beta = torch.rand(2, len(carry), 1, dtype=carry.dtype)
        return carry + Shake.apply(*outputs, alpha, beta)


class ShakeShake(Witness):
    def branches(self, site: Site) -> tuple[BranchPlan, ...]:
        return super().branches(site) * 2

    def join(self, plan: UnitPlan) -> Join:
        return ShakeJoin()


def test_shake_shake() -> None:
    built = stack(ShakeShake(), layers(1))
    f, g = branch(built, 0)(X), branch(built, 0, 1)(X)
    torch.testing.assert_close(built.eval()(X), X + (f + g) / 2)
    built.train()
    torch.manual_seed(3)
    out = built(X)
    grads = torch.autograd.grad(out.sum(), [branch(built, 0, k).linear1.bias for k in (0, 1)])
    torch.manual_seed(3)
    alpha, beta = torch.rand(2, 3, 1, dtype=torch.float64)
    torch.testing.assert_close(out, X + alpha * f + (1 - alpha) * g)
    torch.testing.assert_close(grads[0], (beta * (1 - f**2)).sum(0))
    torch.testing.assert_close(grads[1], ((1 - beta) * (1 - g**2)).sum(0))


# --- Fixup: no norm; scalars in the slots; branch weights scaled by depth -------------------------------------------


class Scalar(nn.Module):
    def __init__(self, value: float, *, multiplies: bool) -> None:
        super().__init__()
        self.value, self.multiplies = nn.Parameter(torch.tensor(value)), multiplies

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value if self.multiplies else x + self.value


def scalar(value: float, multiplies: bool) -> Part:
    return Part(name="scalar", make=lambda _w, _l, _i: Scalar(value, multiplies=multiplies))


class AddJoin(Join):
    scale = 1.0

    def read(self, state: Tensor, t: Tensor | None) -> Any:
        return ((state,),), state

    def write(self, carry: Tensor, outputs: Any, t: Tensor | None) -> Tensor:
        return carry + self.scale * outputs[0]


class Fixup(Witness):
    def slots(self, site: Site) -> dict[str, tuple[Part, ...]]:
        bias = (scalar(0.0, False),)
        return {"start": bias, "between": bias + activation("relu") + bias, "end": (scalar(1.0, True), *bias)}

    def join(self, plan: UnitPlan) -> Join:
        return AddJoin()

    def init_(self, units: Any, rng: Any = None) -> None:
        for unit in units:
            convs = [m for m in unit.branches[0] if isinstance(m, nn.Conv2d)]
            for conv in convs:
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu", generator=rng)
                with torch.no_grad():
                    conv.weight.mul_(len(units) ** (-1 / (2 * len(convs) - 2)))
            nn.init.zeros_(convs[-1].weight)

    def init_head_(self, head: nn.Module, rng: Any = None) -> None:
        nn.init.zeros_(head.weight)


def test_fixup() -> None:
    count = 16
    sites = [Site(block=basic(8, 8), index=i, count=count) for i in range(count)]
    built = stack(Fixup(), sites)
    images = torch.randn(2, 8, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(built(images), images, rtol=0, atol=0)  # the identity at initialisation
    stds = torch.stack([branch(built, i).conv1.weight.std() for i in range(count)])
    assert stds.mean().item() == pytest.approx(math.sqrt(2 / (9 * 8)) * count**-0.5, rel=0.03)
    one = branch(built, 0)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.normal_()
    s = [m for m in one if isinstance(m, Scalar)]
    y = (one.conv1(images + s[0].value) + s[1].value).relu() + s[2].value
    y = images + one.conv2(y) * s[3].value + s[4].value
    torch.testing.assert_close(built.built_units()[0](images), y)


# --- nGPT: the stream on the unit sphere; weights normalised after each step ----------------------------------------


class SphereJoin(Join):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((width,), 1 / math.sqrt(width)))
        self.gain = 0.05 * math.sqrt(width)

    def read(self, state: Tensor, t: Tensor | None) -> Any:
        return ((state,),), state

    def write(self, carry: Tensor, outputs: Any, t: Tensor | None) -> Tensor:
        step = torch.nn.functional.normalize(outputs[0], dim=-1) - carry
        return torch.nn.functional.normalize(carry + self.alpha * self.gain * step, dim=-1)


class NGPT(Witness):
    def branches(self, site: Site) -> tuple[BranchPlan, ...]:
        block = site.block
        assert isinstance(block, AttentionBlock)
        unit = Part(name="unit", make=lambda _w, _l, _i: Call(lambda x: torch.nn.functional.normalize(x, dim=-1)))
        scaled = replace(block, scale=math.sqrt(block.width // block.heads))
        return (BranchPlan(block=scaled, slots={"q": (unit,), "k": (unit,)}),)

    def entry(self, plans: Any) -> nn.Module:
        return Call(lambda x: torch.nn.functional.normalize(x, dim=-1))

    def join(self, plan: UnitPlan) -> Join:
        return SphereJoin(plan.site.block.in_width)

    def after_step_(self, units: Any) -> None:
        for unit in units:
            for name, matrix in unit.branches[0].matrices().items():
                with torch.no_grad():
                    matrix.copy_(torch.nn.functional.normalize(matrix, dim=0 if name == "out" else 1))


def test_ngpt() -> None:
    design = NGPT()
    built = stack(design, [Site(block=ATTENTION, index=i, count=2) for i in range(2)])
    design.after_step_(built.built_units())
    h = TOKENS / TOKENS.norm(dim=-1, keepdim=True)
    for i in range(2):
        module: Any = branch(built, i)
        rows = module.qkv.weight.norm(dim=1)
        torch.testing.assert_close(rows, torch.ones_like(rows))
        torch.testing.assert_close(module.out.weight.norm(dim=0), torch.ones(D, dtype=torch.float64))
        heads = []
        for q, k, v in zip(*(part.chunk(2, -1) for part in module.qkv(h).chunk(3, -1)), strict=True):
            a, b = (m / m.norm(dim=-1, keepdim=True) for m in (q, k))
            heads.append((math.sqrt(3) * a @ b.mT).softmax(-1) @ v)
        y = module.out(torch.cat(heads, -1))
        h = h + 0.05 * (y / y.norm(dim=-1, keepdim=True) - h)
        h = h / h.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(built(TOKENS), h)


# --- CompleteP: branch multiplier and optimiser groups by depth ------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CompleteP(Witness):
    base: int = 2
    alpha: float = 1.0

    def join(self, plan: UnitPlan) -> Join:
        join = AddJoin()
        join.scale = (plan.site.count / self.base) ** -self.alpha
        return join

    def param_groups(self, units: Any, optimizer: OptimizerSpec) -> list[ParameterRule]:
        m = len(units) / self.base
        parameters = tuple(p for unit in units for p in unit.parameters())
        return [ParameterRule(parameters=parameters, lr=m ** (self.alpha - 1), eps=m**-self.alpha)]


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_completep(alpha: float) -> None:
    design = CompleteP(alpha=alpha)
    built = stack(design, layers(8))
    x = X
    for i in range(8):
        x = x + 4**-alpha * branch(built, i)(x)
    torch.testing.assert_close(built(X), x)
    (rule,) = design.param_groups(built.built_units(), OptimizerSpec(name="adamw", lr=1e-3))
    assert len(rule.parameters) == 16
    assert (rule.lr, rule.eps, rule.weight_decay) == (4 ** (alpha - 1), 4**-alpha, 1.0)


# --- ProRes: a schedule in training progress, given as a tensor ------------------------------------------------------


class WarmedJoin(AddJoin):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.start = site.index / site.count

    def write(self, carry: Tensor, outputs: Any, t: Tensor | None) -> Tensor:
        assert t is not None
        return carry + ((t - self.start) * 4).clamp(0, 1) * outputs[0]


class ProRes(Witness):
    uses_progress = True

    def join(self, plan: UnitPlan) -> Join:
        return WarmedJoin(plan.site)


@pytest.mark.parametrize("t", [0.0, 0.3, 0.6, 1.0])
def test_prores(t: float) -> None:
    built = stack(ProRes(), layers(4))
    assert built.progress is not None
    assert "progress" not in built.state_dict()
    built.progress.fill_(t)
    x = X
    for i in range(4):
        x = x + min(1.0, max(0.0, 4 * (t - i / 4))) * branch(built, i)(x)
    torch.testing.assert_close(built(X), x)


# --- PyramidNet: every unit wider than the last; zero-padded shortcut; BN-conv-BN-ReLU-conv-BN ----------------------


class PadJoin(AddJoin):
    def write(self, carry: Tensor, outputs: Any, t: Tensor | None) -> Tensor:
        extra = outputs[0].shape[1] - carry.shape[1]
        return torch.nn.functional.pad(carry, (0, 0, 0, 0, 0, extra)) + outputs[0]


class PyramidNet(Witness):
    def slots(self, site: Site) -> dict[str, tuple[Part, ...]]:
        norm = site.norm.part()
        return {"start": norm, "between": norm + activation(site.act), "end": norm}

    def join(self, plan: UnitPlan) -> Join:
        return PadJoin()


def test_pyramidnet() -> None:
    widths = [4, 5, 7, 8]
    pairs = list(itertools.pairwise(widths))
    sites = [Site(block=basic(a, b), index=i, count=3) for i, (a, b) in enumerate(pairs)]
    built = stack(PyramidNet(), sites)
    assert [type(m).__name__ for m in branch(built, 0)] == [
        "BatchNorm2d", "Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d",
    ]  # fmt: skip
    images = torch.randn(3, 4, 5, 5, dtype=torch.float64)
    y = images
    for i in range(3):
        out = branch(built, i)(y)
        padded = torch.zeros_like(out)
        padded[:, : y.shape[1]] = y
        y = padded + out
    torch.testing.assert_close(built(images), y)


# --- Value residual: a branch gives its values to later ones through port and slot -----------------------------------


class MixValues(nn.Module):
    def forward(self, value: Tensor, memory: Tensor | None = None) -> Tensor:
        return value if memory is None else (value + memory) / 2


class ValueJoin(Join):
    def read(self, state: Any, t: Tensor | None) -> Any:
        x, memory = state
        return ((x,) if memory is None else (x, x, x, memory),), state

    def write(self, carry: Any, outputs: Any, t: Tensor | None) -> Any:
        out, value = outputs[0]
        return carry[0] + out, value if carry[1] is None else carry[1]


class ValueResidual(Witness):
    def branches(self, site: Site) -> tuple[BranchPlan, ...]:
        assert isinstance(site.block, AttentionBlock)
        mix = Part(name="mix", make=lambda _w, _l, _i: MixValues())
        return (BranchPlan(block=replace(site.block, emit_values=True), slots={"v": (mix,)}),)

    def entry(self, plans: Any) -> nn.Module:
        return Call(lambda x: (x, None))

    def exit(self, plans: Any) -> nn.Module:
        return Call(lambda state: state[0])

    def join(self, plan: UnitPlan) -> Join:
        return ValueJoin()


def test_value_residual() -> None:
    built = stack(ValueResidual(), [Site(block=ATTENTION, index=i, count=3) for i in range(3)])
    x, first = TOKENS, None
    for i in range(3):
        module: Any = branch(built, i)
        q, k, v = module.qkv(x).chunk(3, -1)
        first = v if first is None else first
        v = v if i == 0 else (v + first) / 2
        heads = [
            (a @ b.mT / math.sqrt(3)).softmax(-1) @ c
            for a, b, c in zip(q.chunk(2, -1), k.chunk(2, -1), v.chunk(2, -1), strict=True)
        ]
        x = x + module.out(torch.cat(heads, -1))
    torch.testing.assert_close(built(TOKENS), x)


# --- Slots that reach into a branch: SubLN's norm before the last weights of attention and MLP ------------------------


def test_slots_of_subln() -> None:
    norm = LN.part()
    attention: Any = ATTENTION.build({"start": norm, "mixed": norm}).double()
    mlp: Any = MLPBlock(reads=D, writes=D, hidden=8, act="gelu").build({"start": norm, "hidden": norm}).double()
    q, k, v = attention.qkv(attention.start(TOKENS)).chunk(3, -1)
    heads = [
        (a @ b.mT / math.sqrt(3)).softmax(-1) @ c
        for a, b, c in zip(q.chunk(2, -1), k.chunk(2, -1), v.chunk(2, -1), strict=True)
    ]
    mixed = torch.cat(heads, -1)
    torch.testing.assert_close(attention(TOKENS), attention.out(torch.nn.functional.layer_norm(mixed, (D,))))
    hidden = torch.nn.functional.gelu(mlp.linear1(torch.nn.functional.layer_norm(TOKENS, (D,))))
    torch.testing.assert_close(mlp(TOKENS), mlp.linear2(torch.nn.functional.layer_norm(hidden, (8,))))


def test_grouped_and_strided_convolutions_name_their_ops() -> None:
    block = ConvBlock(
        convs=(
            Conv(kernel=3, in_width=8, out_width=8, groups=8, stride=2),
            Conv(kernel=3, in_width=8, out_width=16, groups=4),
            Conv(kernel=1, in_width=16, out_width=4),
        )
    )
    assert [str(op) for op in block.ops({}, "train")] == ["DWConv3x3/2", "GConv3x3", "Conv1x1"]
    assert block.build({})(torch.randn(1, 8, 7, 7)).shape == (1, 4, 4, 4)
