"""More hand-made models, thought up against the inspector: numeric formats, wrappers, in-place tricks, odd outputs.

Three units of identity shortcut unless said otherwise. Shapes: N batch, D width (16), C channels, H height, W width,
T tokens.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from units.case import WIDTH, Block, Branch, Collection, Stack, vectors

__all__ = ["ADVERSARY"]

_all = Collection()
join, model = _all.join, _all.model
ADVERSARY: Final = _all.cases


def _plain(b: Block, x: Tensor) -> Tensor:
    return x + b.branch(x)


# Numeric formats ------------------------------------------------------------------------------------------------------


@model("float16", units=3, shortcut="x*3", after="x*3", batch=lambda: vectors().half())
def _() -> nn.Module:
    return Stack(_plain).half()


@model("bfloat16, post-norm", units=3, shortcut="x*3", after="LN*3", batch=lambda: vectors().bfloat16())
def _() -> nn.Module:
    return Stack(lambda b, x: b.norm(x + b.branch(x))).bfloat16()


@model("float64", units=3, shortcut="x*3", after="x*3", batch=lambda: vectors().double())
def _() -> nn.Module:
    return Stack(_plain).double()


@join("summed in float32, kept in bfloat16", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return (x.float() + b.branch(x).float()).bfloat16().float()


@join("branch under autocast", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = b.branch(x)
    return x + y


@model("complex", units=3, shortcut="x*3", after="x*3", batch=lambda: torch.randn(4, WIDTH, dtype=torch.complex64))
class _Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = (
            nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64) / 4) for _ in range(3))
            for _ in range(2)
        )

    def forward(self, z: Tensor) -> Tensor:
        for inner, outer in zip(self.inner, self.outer, strict=True):
            z = z + torch.tanh(z @ inner) @ outer
        return z.abs().sum(1)


@model("empty batch", units=3, shortcut="x*3", after="x*3", batch=lambda: torch.randn(0, WIDTH), proved=False)
def _() -> nn.Module:
    return Stack(_plain)


@model("meta device", units=3, shortcut="x*3", after="x*3", batch=lambda: vectors().to("meta"), proved=False)
def _() -> nn.Module:
    return Stack(_plain).to("meta")


# In-place and aliases -------------------------------------------------------------------------------------------------


@join("in-place ReLU before the split", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    x = F.relu(x + 0, inplace=True)
    return x + b.branch(x)


@join("in-place ReLU at the end of the branch", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + F.relu(b.branch(x), inplace=True)


@join("in-place ReLU after an in-place add", shortcut="x*3", after="ReLU*3")
def _(b: Block, x: Tensor) -> Tensor:
    return F.relu(b.branch(x).add_(x), inplace=True)


@join("out= without gradients", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.add(x, b.branch(x), out=torch.empty_like(x))


@join("x.add_ on a clone of x", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(b.branch(x))
    return y


@join("copied into a buffer, then added", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y.copy_(x)
    return y + b.branch(x)


@join("added through two views", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return (x.view(4, 4, 4).transpose(1, 2) + b.branch(x).view(4, 4, 4).transpose(1, 2)).transpose(1, 2).reshape(4, 16)


@join("written half by half", units=None, listed=0)
def _(b: Block, x: Tensor) -> Tensor:
    y, out = b.branch(x), torch.empty_like(x)
    out[:, :8] = x[:, :8] + y[:, :8]
    out[:, 8:] = x[:, 8:] + y[:, 8:]
    return out


# Algebra --------------------------------------------------------------------------------------------------------------


@join("alpha = -1 in torch.sub", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.sub(x, b.branch(x), alpha=-1)


@join("rsub", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.rsub(b.branch(x), x)


@join("lerp with a number", shortcut="lerp*3 | 0.75*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return torch.lerp(x, b.branch(x), 0.25)


@join("sum divided by the square root of two", shortcut="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return (x + b.branch(x)) / 2**0.5


@join("shortcut divided by two", shortcut="0.5*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x / 2 + b.branch(x)


@join("three terms, right-associative", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + (b.branch(x) + b.gate(x))


@join("three terms, left-associative", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return (b.branch(x) + x) + torch.relu(b.gate(x))


@join("doubled x alone is no unit", units=0)
def _(b: Block, x: Tensor) -> Tensor:
    return b.branch(x + x)


@join("a learned scalar ends the branch", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + b.gain[:1] * b.branch(b.norm(x))


@join("GLU inside the branch", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + b.branch.outer(torch.sigmoid(b.gate(x)) * b.branch.inner(x))


@join("product with a vector from the batch", units=0)
def _(b: Block, x: Tensor) -> Tensor:
    return x * (1 + b.branch(x).mean(-1, keepdim=True))


@join("context of every row added to all", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + b.branch(x.mean(0, keepdim=True))


@join("mixed across rows by transposes", shortcut="x*3", after="x*3", batch=lambda: torch.randn(2, WIDTH, WIDTH))
def _(b: Block, x: Tensor) -> Tensor:
    return x + b.branch(x.transpose(1, 2)).transpose(1, 2)


@join("einsum inside the branch", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    hidden = torch.relu(torch.einsum("nd,ed->ne", x, b.branch.inner.weight))
    return x + torch.einsum("ne,de->nd", hidden, b.branch.outer.weight)


@join("clamped after the sum", units=3, shortcut="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return (x + b.branch(x)).clamp(-10, 10)


@join("masked choice between x and x + F", units=None)
def _(b: Block, x: Tensor) -> Tensor:
    return torch.where(x.sum(-1, keepdim=True) > 0, x + b.branch(x), x)


@join("a unit within the branch", units=6, shortcut="x*6", after="ReLU*3 x*3")
def _(b: Block, x: Tensor) -> Tensor:
    y = b.branch.inner(x)
    y = y + b.gate(torch.relu(y))
    return x + b.branch.outer(torch.relu(y))


@join("concatenation only", units=0)
def _(b: Block, x: Tensor) -> Tensor:
    return torch.cat([x[:, :8], b.branch(x)[:, 8:]], -1)


# Gradients ------------------------------------------------------------------------------------------------------------


@model("all parameters frozen", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    return Stack(_plain).requires_grad_(requires_grad=False)


@join("no_grad around the whole block", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    with torch.no_grad():
        return x + b.branch(x)


@join("inference mode around the branch", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = b.branch(x)
    return x + y.clone()


@join("detached branch", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + b.branch(x).detach()


class _Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 0.5

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 0.5


@join("custom autograd function ends the branch", shortcut="x*3", after="x*3")
def _(b: Block, x: Tensor) -> Tensor:
    return x + _Halve.apply(b.branch(x))


@join("checkpointed block with dropout", shortcut="x*3", after="x*3", train=True)
def _(b: Block, x: Tensor) -> Tensor:
    return checkpoint(lambda z: z + b.drop(b.branch(z)), x, use_reentrant=False)


@model("embedding, tied with the head", units=3, shortcut="x*3", batch=lambda: torch.randint(0, 9, (2, 5)))
class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.stack = nn.Embedding(9, WIDTH), Stack(_plain)
        self.stack.head = nn.Linear(WIDTH, 9, bias=False)
        self.stack.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.stack(self.embed(ids))


# Wrappers -------------------------------------------------------------------------------------------------------------


@model("torch.compile", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    return torch.compile(Stack(_plain), backend="eager")


@model("torch.compile, already run", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    compiled = torch.compile(Stack(_plain), backend="eager")
    compiled(vectors())
    return compiled


@model("one compiled block inside", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    stack = Stack(_plain)
    stack.blocks[1] = torch.compile(stack.blocks[1], backend="eager")
    return stack


@model("DataParallel", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    return nn.DataParallel(Stack(_plain))


@model("DistributedDataParallel", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(Stack(_plain))


@model("weight norm by parametrization", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    stack = Stack(_plain)
    for block in stack.blocks:
        parametrizations.weight_norm(block.branch.outer)
    return stack


@model("spectral norm, train mode", units=3, shortcut="x*3", after="x*3", train=True)
def _() -> nn.Module:
    stack = Stack(_plain)
    for block in stack.blocks:
        parametrizations.spectral_norm(block.branch.outer)
    return stack


class _LazyBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.LazyLinear(WIDTH), nn.LazyLinear(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.relu(self.inner(x)))


@model("lazy modules, materialised", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    net = nn.Sequential(*(_LazyBlock() for _ in range(3)))
    net(vectors())
    return net


@model("hooks of the user's own", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    stack = Stack(_plain)
    for block in stack.blocks:
        block.register_forward_pre_hook(lambda module, args: None)
        block.branch.register_forward_hook(lambda module, args, output: output.clone())
        block.register_full_backward_hook(lambda module, grads, outputs: None)
    return stack


@model("a hook does the addition", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    branches = [Branch() for _ in range(3)]
    for branch in branches:
        branch.register_forward_hook(lambda module, args, output: args[0] + output)
    return nn.Sequential(*branches)


@model("traced by torch.jit.trace", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    return torch.jit.trace(Stack(_plain), (vectors(),))


@model("a graph module of torch.fx", units=3, shortcut="x*3", after="x*3")
def _() -> nn.Module:
    return torch.fx.symbolic_trace(Stack(_plain))


@model("torch.func.functional_call inside", units=3, shortcut="x*3", after="x*3")
class _FunctionalCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(_plain)

    def forward(self, x: Tensor) -> Tensor:
        doubled = {name: p * 2 for name, p in self.stack.named_parameters()}
        return torch.func.functional_call(self.stack, doubled, (x,))


# Inputs and outputs ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Output:
    logits: Tensor
    states: list[Tensor]


@model("every stream is an output too", units=3, shortcut="x*3", after="x*3")
class _AllStates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(Branch() for _ in range(3))

    def forward(self, x: Tensor) -> _Output:
        states = [x]
        for branch in self.branches:
            x = x + branch(x)
            states.append(x)
        return _Output(logits=x.sum(-1), states=states)


@model("nested dict as output", units=3, shortcut="x*3", after="x*3")
class _Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(_plain)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"a": {"b": [self.stack(x), None]}, "n": 3, "ids": torch.arange(3)}


@model("integers as output", units=3, shortcut="x*3", after="x*3")
class _Integers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(_plain)

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x).argmax(-1)


@model("two inputs, positional", units=3, shortcut="x*3", after="x*3", batch=lambda: (vectors(), vectors()))
class _TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(_plain)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.stack(x * torch.sigmoid(context))


@model("keywords only, with a list", units=3, batch=lambda: {"xs": [vectors(), vectors()], "scale": 2.0})
class _Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(_plain)

    def forward(self, *, xs: list[Tensor], scale: float = 1.0) -> Tensor:
        return self.stack(torch.cat(xs)) * scale


@model("cross-attention to an encoding", units=3, shortcut="x*3", after="x*3", batch=lambda: (_tokens(), _tokens()))
class _Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        for attention in self.attend:
            x = x + attention(x, memory, memory)[0]
        return x


def _tokens() -> Tensor:
    return torch.randn(2, 5, WIDTH)


# Other layers ---------------------------------------------------------------------------------------------------------


@model("LSTM as branch", units=2, shortcut="x*2", after="x*2", batch=_tokens)
class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)[0]
        return x


class _ConvUnit(nn.Module):
    def __init__(self, norm: nn.Module, *, channels: int = 8) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(channels, channels, 3, 1, 1)
        )
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.branch(x))


def _images() -> Tensor:
    return torch.randn(2, 8, 6, 6)


@model("channels last", units=3, after="BN*3", batch=lambda: _images().to(memory_format=torch.channels_last))
def _() -> nn.Module:
    return nn.Sequential(*(_ConvUnit(nn.BatchNorm2d(8)) for _ in range(3)), nn.Flatten()).to(
        memory_format=torch.channels_last
    )


@model("batch norm after, train mode", units=3, shortcut="x*3", after="BN*3", batch=_images, train=True)
def _() -> nn.Module:
    return nn.Sequential(*(_ConvUnit(nn.BatchNorm2d(8)) for _ in range(3)), nn.Conv2d(8, 2, 1))


@model("group and instance norm after", units=2, shortcut="x*2", after="GN*1 IN*1", batch=_images)
def _() -> nn.Module:
    return nn.Sequential(_ConvUnit(nn.GroupNorm(2, 8)), _ConvUnit(nn.InstanceNorm2d(8)), nn.Conv2d(8, 2, 1))


@model("instance norm with a gain after, one image", units=1, shortcut="x*1", after="IN*1", batch=lambda: _images()[:1])
def _() -> nn.Module:
    return nn.Sequential(_ConvUnit(nn.InstanceNorm2d(8, affine=True)), nn.Conv2d(8, 2, 1))


@model(
    "batch norm behind an idle view after, one image", units=1, after="BN*1", batch=lambda: _images()[:1], train=True
)
def _() -> nn.Module:
    return nn.Sequential(_ConvUnit(nn.Sequential(nn.Unflatten(1, (8,)), nn.BatchNorm2d(8))), nn.Conv2d(8, 2, 1))


@model("leaky ReLU, SiLU and Hardswish after", units=3, after="LeakyReLU*1 SiLU*1 HardSwish*1", batch=_images)
def _() -> nn.Module:
    return nn.Sequential(
        _ConvUnit(nn.LeakyReLU(inplace=True)), _ConvUnit(nn.SiLU()), _ConvUnit(nn.Hardswish()), nn.Conv2d(8, 2, 1)
    )


@model("RMS norm after", units=3, shortcut="x*3", after="RMSNorm*3")
def _() -> nn.Module:
    stack = Stack(lambda b, x: b.norm(x + b.branch(x)))
    for block in stack.blocks:
        block.norm = nn.RMSNorm(WIDTH)
    return stack


@model("upsampling units with a transposed convolution", units=2, after="x*2", batch=_images)
class _Upsample(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.ConvTranspose2d(8, 8, 4, 2, 1) for _ in range(2))
        self.conv = nn.ModuleList(nn.Conv2d(8, 8, 3, 1, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for up, conv in zip(self.up, self.conv, strict=True):
            x = F.interpolate(x, scale_factor=2) + conv(F.relu(up(x)))
        return x


@model("1-d and 3-d convolutions", units=2, shortcut="x*2", after="x*2", batch=lambda: torch.randn(2, 4, 8))
class _OneAndThree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.space = nn.Conv1d(4, 4, 3, padding=1), nn.Conv3d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.tanh(self.line(x))
        y = x.reshape(2, 4, 2, 2, 2)
        return y + torch.tanh(self.space(y))


@model("the branch is a list of modules, summed in a loop", units=1, shortcut="x*1", after="x*1")
class _SumOfMany(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches, self.head = nn.ModuleList(Branch() for _ in range(3)), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for branch in self.branches:
            y = y + branch(x)
        return self.head(y)


@model("blocks dropped by Python's random numbers", units=None, train=True)
class _Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(Branch() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for branch in self.branches:
            if not self.training or random.random() < 0.5:
                x = x + branch(x)
        return x


@model("graph messages added by index_add", units=None)
class _Messages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(Branch() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        source, target = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 0])
        for branch in self.branches:
            x = x.index_add(0, target, branch(x[source]))
        return x
