"""54 hand-made models that defeat simple detectors, each with the right answer.

Three units unless said otherwise. Shapes: N batch, D width (16), C channels, H height, W width, T tokens, K streams.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from units.case import WIDTH, Block, Branch, Collection

__all__ = ["HARD"]

_all = Collection()
join, model = _all.join, _all.model
HARD: Final = _all.cases

# Spellings of an addition ---------------------------------------------------------------------------------------------


@join("x + F", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + b.branch(x)


@join("F.add_(x)", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return b.branch(x).add_(x)


@join("F += x, then relu_", shortcut="x*3", after="ReLU*3")
def _(b: Block, x: Tensor) -> Tensor:
    y = b.branch(x)
    y += x
    return F.relu_(y)


@join("torch.add with alpha", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.add(x, b.branch(x), alpha=0.5)


@join("torch.add", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.add(x, b.branch(x))


@join("x - F", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x - b.branch(x)


@join("F - x is no shortcut", units=0)
def _(b: Block, x: Tensor) -> Tensor:
    return b.branch(x) - x


@join("fused addmm", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.addmm(x, torch.relu(b.branch.inner(x)), b.branch.outer.weight.t())


@join("fused baddbmm", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    hidden = torch.relu(b.branch.inner(x))
    return torch.baddbmm(x[None], hidden[None], b.branch.outer.weight.t()[None]).squeeze(0)


@join("addcmul with a gain", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.addcmul(x, b.branch(x), b.gain)


@join("torch.lerp with a gate", shortcut="lerp*3 | (1-g)*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.lerp(x, b.branch(x), torch.sigmoid(b.gate(x)))


@join("highway", shortcut="lerp*3 | (1-g)*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    t = torch.sigmoid(b.gate(x))
    return t * b.branch(x) + (1 - t) * x


@join("stack, then sum", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.stack([x, b.branch(x)]).sum(0)


@join("stack, then mean", shortcut="0.5*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.stack([x, b.branch(x)]).mean(0)


@join("Python's sum", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return sum([x, b.branch(x)])


@join("cat, then sum", units=None, listed=3)
def _(b: Block, x: Tensor) -> Tensor:
    return torch.cat([x[:, None], b.branch(x)[:, None]], 1).sum(1)


@join("einsum over a stack", units=None, listed=3)
def _(b: Block, x: Tensor) -> Tensor:
    return torch.einsum("k,nkd->nd", torch.ones(2), torch.stack([x, b.branch(x)], 1))


# Hidden from one tracer or another ------------------------------------------------------------------------------------


@join("checkpoint, non-reentrant", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return checkpoint(lambda z: z + b.branch(z), x, use_reentrant=False)


@join("checkpoint, reentrant", shortcut="x*3", after="x*3", batch=lambda: torch.randn(4, WIDTH, requires_grad=True))
def _(b: Block, x: Tensor) -> Tensor:
    return checkpoint(lambda z: z + b.branch(z), x, use_reentrant=True)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


@join("addition in a custom autograd function", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return _Add.apply(x, b.branch(x))


def _add_relu(a: Tensor, b: Tensor) -> Tensor:
    return torch.relu(a + b)


@join("scripted addition and ReLU", shortcut="x*3", after="ReLU*3")
def _(b: Block, x: Tensor) -> Tensor:
    return _scripted(x, b.branch(x))


def _scripted(x: Tensor, y: Tensor) -> Tensor:
    if not _compiled:
        _compiled.append(torch.jit.script(_add_relu))
    return _compiled[0](x, y)


_compiled: list[Any] = []  # scripting costs a moment: only when the case runs


@join("slice assignment", shortcut="Slice*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :8] = x[:, :8] + b.branch(x)[:, :8]
    return x


@join("in-place on a slice of F", shortcut="Slice*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    y = b.branch(x)
    y[:, :8] += x[:, :8]
    return y


@join("in-place on a flat view of F", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    y = b.branch(x)
    y.view(-1).add_(x.reshape(-1))
    return y


@model("one module called three times", units=3, shortcut="x*3", after="x*3")
class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head = Branch(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + self.branch(x)
        return self.head(x)


@model("no modules at all", units=3, shortcut="x*3")
class _Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):  # whether the norm belongs to this step or to the last is a matter of taste here
            x = F.layer_norm(x, (WIDTH,))
            x = x + torch.tanh(x @ self.weights[2 * i]) @ self.weights[2 * i + 1]
        return x


# What stands on the path ----------------------------------------------------------------------------------------------


@join("post-norm", shortcut="x*3", after="LN*3")
def _(b: Block, x: Tensor) -> Tensor:
    return b.norm(x + b.branch(x))


@join("pre-norm", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + b.branch(b.norm(x))


@join("norm on the shortcut", shortcut="LN*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return b.norm(x) + b.branch(x)


@join("dropout on the shortcut", shortcut="Dropout*3", after="x*3", train=True)
def _(b: Block, x: Tensor) -> Tensor:
    return b.drop(x) + b.branch(x)


@join("drop-path by comparison", shortcut="x*3", after="x*3", train=True)
def _(b: Block, x: Tensor) -> Tensor:
    mask = torch.rand(x.shape[0], 1) < 0.8
    return x + b.branch(x) * mask.float() / 0.8


@join("drop-path as timm writes it", shortcut="x*3", after="x*3", train=True)
def _(b: Block, x: Tensor) -> Tensor:
    mask = x.new_empty(x.shape[0], 1).bernoulli_(0.8)
    mask.div_(0.8)
    return x + b.branch(x) * mask


@join("learned scalar on the shortcut", shortcut="α*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return b.gain[0] * x + b.branch(x)


@join("0.7 on the shortcut", shortcut="0.7*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return 0.7 * x + b.branch(x)


@join("exclusive gate", shortcut="lerp*3 | g*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.sigmoid(b.gate(x)) * x + (1 - torch.sigmoid(b.gate(x))) * b.branch(x)


# No units -------------------------------------------------------------------------------------------------------------


@join("sum of two linear maps", units=0)
def _(b: Block, x: Tensor) -> Tensor:
    return torch.relu(b.gate(x) + b.branch.inner(x))


@join("LoRA", units=0)
def _(b: Block, x: Tensor) -> Tensor:
    return torch.relu(b.gate(x) + 0.1 * b.branch.outer(b.branch.inner(x)))


@join("GELU as a polynomial", units=0)
def _(b: Block, x: Tensor) -> Tensor:
    z = b.gate(x)
    return 0.5 * z * (1 + torch.tanh(0.79788 * (z + 0.044715 * z**3)))


@join("gate alone", units=0)
def _(b: Block, x: Tensor) -> Tensor:
    return x * torch.sigmoid(b.branch(x))


@join("gated copy of x added to x", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + x * torch.sigmoid(b.branch(x))


# More than one stream -------------------------------------------------------------------------------------------------


@model("RevNet: two coupled units a block", units=6)
class _RevNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = (
            nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for f, g in zip(self.f, self.g, strict=True):
            a, b = x.chunk(2, -1)
            a = a + f(b)
            b = b + g(a)
            x = torch.cat([a, b], -1)
        return x


@model("the first x injected into every block", units=3, also={"injection": 2})
class _FirstSkip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry, self.branches = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Branch() for _ in range(3))
        self.gains = nn.Parameter(torch.ones(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = first = self.entry(x)
        for i, branch in enumerate(self.branches):  # in the first round both terms are the same x: no injection
            x = self.gains[i, 0] * x + self.gains[i, 1] * first
            x = x + branch(x)
        return x


@model("hyper-connections", units=None, listed=3)
class _HyperConnections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(Branch() for _ in range(3))
        self.mix = nn.Parameter(torch.eye(4).repeat(3, 1, 1))  # (blocks, K, K)
        self.write, self.read = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3, 4) / 4)

    def forward(self, x: Tensor) -> Tensor:
        streams = x[:, None].repeat(1, 4, 1)  # (N, K, D)
        for i, branch in enumerate(self.branches):
            y = branch(torch.einsum("k,nkd->nd", self.read[i], streams))
            streams = torch.einsum("jk,nkd->njd", self.mix[i], streams) + self.write[i][None, :, None] * y[:, None]
        return streams.sum(1)


# PyTorch's own transformer --------------------------------------------------------------------------------------------


def _tokens() -> Tensor:
    return torch.randn(2, 5, WIDTH)


def _encoder(*, norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@model("nn.TransformerEncoder, post-norm", units=4, shortcut="x*4", after="LN*4", batch=_tokens)
def _() -> nn.Module:
    return _encoder(norm_first=False)


@model("nn.TransformerEncoder, pre-norm", units=4, shortcut="x*4", after="x*4", batch=_tokens)
def _() -> nn.Module:
    return _encoder(norm_first=True)


@model("nn.TransformerDecoder", units=6, shortcut="x*6", after="LN*6", batch=_tokens)
class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 2, 32, batch_first=True), 2)
        self.encoder = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(x, self.encoder(x))


# Long, unrolled, detached, decided by data ----------------------------------------------------------------------------


@model("additive U-Net: three merges, units or long skips", units=None)
class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = (nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = torch.relu(layer(x))
            skips.append(x)
        for layer in self.up:
            x = torch.relu(layer(x)) + skips.pop()
        return x


@model("GRU cell, unrolled", units=None)
class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], WIDTH)
        for _ in range(3):
            state = self.cell(x, state)
        return state


@join("detached shortcut", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x.detach() + b.branch(x)


@join("control flow that looks at values", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + b.branch(x) if x.sum().item() > -1e9 else x


# Convolutions whose shortcut changes shape ----------------------------------------------------------------------------


def _images() -> Tensor:
    return torch.randn(2, 3, 16, 16)


class _TwoConvUnits(nn.Module):
    """A stem and two units; the first halves the image and doubles the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.ModuleList([nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)])
        self.second = nn.ModuleList([nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)])
        self.halves = nn.ModuleList([nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)])


@model(
    "option A: strided slice and zero channels", units=2, shortcut="ZeroPad·Slice*1 x*1", after="ReLU*2", batch=_images
)
class _OptionA(_TwoConvUnits):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        shortcut = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4))
        x = F.relu(shortcut + self.first[1](F.relu(self.first[0](x))))
        x = F.relu(x + self.second[1](F.relu(self.second[0](x))))
        return x.mean((2, 3))


@model(
    "option A: pool and concatenated zeros", units=2, shortcut="ZeroPad·AvgPool*1 x*1", after="ReLU*2", batch=_images
)
class _OptionAPooled(_TwoConvUnits):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pooled = F.avg_pool2d(x, 2)
        shortcut = torch.cat([pooled, torch.zeros_like(pooled)], 1)
        x = F.relu(shortcut + self.first[1](F.relu(self.first[0](x))))
        x = F.relu(x + self.second[1](F.relu(self.second[0](x))))
        return x.mean((2, 3))


@model("Shake-Shake: two shifted halves on the shortcut", units=2, after="x*2", batch=_images)
class _TwoPathShortcut(_TwoConvUnits):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        shifted = F.avg_pool2d(F.pad(x, (-1, 1, -1, 1)), 1, 2)
        shortcut = torch.cat([self.halves[0](F.avg_pool2d(x, 1, 2)), self.halves[1](shifted)], 1)
        x = shortcut + self.first[1](F.relu(self.first[0](F.relu(x))))
        x = x + self.second[1](F.relu(self.second[0](F.relu(x))))
        return x.mean((2, 3))


@model("PyramidNet: added to the first channels in place", units=2, after="x*2", batch=_images)
class _Pyramid(_TwoConvUnits):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.first[1](F.relu(self.first[0](x)))
        y[:, :8].add_(F.avg_pool2d(x, 2))
        y = y + self.second[1](F.relu(self.second[0](y)))
        return y.mean((2, 3))
