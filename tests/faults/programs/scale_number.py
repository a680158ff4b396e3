"""Programs in which numbers themselves go wrong: garbage in a buffer, the limits of a dtype, NaN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from faults.case import healthy, pair
from faults.nets import (
    ConvNet,
    Residual,
    TokenNet,
    bn_relu,
    ids,
    images,
    mlp,
    preact,
    preact_net,
    prenorm,
    prenorm_net,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# --- scale-buffer: garbage after meta-init and to_empty ---


class BufferScaled(nn.Module):
    """x + s·F(x), s in a buffer that no checkpoint holds."""

    def __init__(self, branch: nn.Module, scale: float, *, persistent: bool = False) -> None:
        super().__init__()
        self.branch = branch
        self.register_buffer("scale", torch.tensor(scale), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.branch(x) * self.scale)


class BufferVector(nn.Module):
    """One number a channel, on the shortcut's side of an in-place add."""

    def __init__(self, branch: nn.Module, scale: float, width: int = 16) -> None:
        super().__init__()
        self.branch = branch
        self.register_buffer("gain", torch.full((width, 1, 1), scale), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x) * self.gain
        y += x
        return y


def _materialised(make: Callable[[], nn.Module], buffer: str, garbage: float | None, value: float) -> nn.Module:
    """Build on the meta device, give it memory, initialise what has a `reset_parameters`; the buffers have none.

    What `to_empty` leaves is whatever was in memory; here a fixed number stands for it, so that runs repeat.
    """
    with torch.device("meta"):
        net = make()
    net = net.to_empty(device="cpu")
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    if isinstance(net, TokenNet):
        nn.init.normal_(net.position, std=0.1)
    for name, tensor in net.named_buffers():
        if name.endswith(buffer):
            tensor.fill_(value if garbage is None else garbage)
    return net


def _scaled_tokens() -> nn.Module:
    return TokenNet([BufferScaled(u.branch, 0.3) for _ in range(3) for u in prenorm()])


def _scaled_convs() -> nn.Module:
    return ConvNet([BufferVector(preact(), 0.2) for _ in range(4)], end=bn_relu())


pair("scale-buffer", "huge", lambda f: _materialised(_scaled_tokens, "scale", 3.1e12 if f else None, 0.3), ids(),
     severity="error", where="layers", reason="a large number was in memory")  # fmt: skip
pair("scale-buffer", "denormal", lambda f: _materialised(_scaled_convs, "gain", 4.2e-41 if f else None, 0.2), images(),
     severity="error", where="units", reason="integers in memory, read as floats, are next to zero")  # fmt: skip
pair("scale-buffer", "negative", lambda f: _materialised(_scaled_tokens, "scale", -7.7e9 if f else None, 0.3), ids(),
     severity="error", where="layers", reason="a large negative number was in memory")  # fmt: skip


class Rotary(nn.Module):
    """Buffers of a usual kind: a mask of zeros and -inf, tables of sines, none of them a scale."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.value, self.out = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.register_buffer("mask", torch.full((64, 64), -math.inf).triu(1), persistent=False)
        self.register_buffer("table", torch.arange(64.0)[:, None] / 1e4 ** (torch.arange(width) / width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = x.shape[1]
        h = self.norm(x) * self.table[:t].cos()
        scores = h @ h.transpose(1, 2) / 6 + self.mask[:t, :t]
        return x + self.out(scores.softmax(-1) @ self.value(h))


healthy("scale-buffer", "persistent", lambda: TokenNet([BufferScaled(u.branch, 0.2, persistent=True) for _ in range(3)
        for u in prenorm()]), ids(), reason="a scale of 0.2 in a persistent buffer")  # fmt: skip
healthy("scale-buffer", "tables", lambda: TokenNet([Rotary() for _ in range(3)]), ids(),
        reason="masks and tables are no scales")  # fmt: skip

# --- fp16-headroom ---


def _largest(model: nn.Module, batch: torch.Tensor, module: nn.Module) -> float:
    seen: list[float] = []
    handle = module.register_forward_hook(lambda _m, _i, o: seen.append(float(o.float().abs().max())))
    with torch.no_grad():
        model(batch)
    handle.remove()
    return seen[0]


def _outlier_tokens(outlier: bool) -> nn.Module:
    """One output channel of one branch is huge, as in large trained encoder-decoders."""
    net = prenorm_net(3).half()
    last = net.layers[3].branch[1][2]
    if outlier:
        with torch.no_grad():
            last.bias[5] = 48_000.0
    return net


def _outlier_convs(outlier: bool) -> nn.Module:
    net = preact_net(4).half()
    if outlier:
        with torch.no_grad():
            net.units[1].branch[5].weight *= 40_000 / _largest(net, images()().half(), net.units[1].branch[5])
    return net


def _half_images() -> torch.Tensor:
    return images()().half()


pair("fp16-headroom", "token", _outlier_tokens, ids(), severity="warning", where="layers.3",
     reason="one channel of the stream reaches 48,000 of 65,504")  # fmt: skip
pair("fp16-headroom", "conv", _outlier_convs, _half_images, severity="warning", where="units.1",
     reason="one branch reaches 40,000 in float16")  # fmt: skip
healthy("fp16-headroom", "bf16", lambda: _outlier_tokens(True).bfloat16(), ids(),
        reason="the same numbers in bfloat16, which reaches 3e38")  # fmt: skip

# --- bf16-swamping: updates below half an ulp of the stream ---


class Loud(nn.Module):
    """Makes the stream large before the first unit, as a scaled embedding does."""

    def __init__(self, factor: float = 512.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def _quiet(branch: nn.Module, factor: float = 0.2) -> nn.Module:
    for module in branch.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.weight.data *= factor
    return branch


def _loud_tokens(narrow: bool) -> nn.Module:
    net = TokenNet([Loud(), *(Residual(_quiet(u.branch)) for _ in range(4) for u in prenorm())])
    return net.bfloat16() if narrow else net


class Wide(nn.Module):
    """The stream in float32, whatever the branch computes in."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() + self.branch(x)


def _loud_convs(narrow: bool) -> nn.Module:
    unit = Residual if narrow else Wide
    return ConvNet([Loud(), *(unit(_quiet(preact(), 0.1)) for _ in range(5))], end=bn_relu())


pair("bf16-swamping", "token", _loud_tokens, ids(), severity="warning", where=None,
     reason="stream of rms 500 in bfloat16, updates below 1; the twin is float32")  # fmt: skip
pair("bf16-swamping", "autocast", _loud_convs, images(), severity="warning", where=None, options={"amp": "bfloat16"},
     twin_options={"amp": "bfloat16"}, reason="under autocast; the twin keeps the stream in float32")  # fmt: skip
healthy("bf16-swamping", "usual", lambda: prenorm_net().bfloat16(), ids(), reason="a bfloat16 model of usual size")

# --- stream-dtype: the dtype changes along the stream ---


class Cast(nn.Module):
    """x + F(x), then into another dtype."""

    def __init__(self, branch: nn.Module, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.branch, self.dtype = branch, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x.float())
        return (x + y).to(self.dtype) if self.dtype else x + y


class HalfIn(nn.Module):
    """One unit is kept in bfloat16 from beginning to end."""

    def __init__(self, branch: nn.Module, narrow: bool) -> None:
        super().__init__()
        self.branch, self.narrow = branch, narrow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.narrow:
            return x + self.branch(x)
        y = x.bfloat16()
        return (y + self.branch(y.float()).bfloat16()).float()


pair("stream-dtype", "token", lambda f: TokenNet([Cast(u.branch, torch.float16 if f and k == 1 else None)
     for k in range(3) for u in prenorm()]), ids(), severity="warning", where="layers",
     reason="float16 after the third and fourth of six units, float32 after the next")  # fmt: skip
pair("stream-dtype", "conv", lambda f: ConvNet([HalfIn(preact(), f and k == 2) for k in range(5)], end=bn_relu()),
     images(), severity="warning", where="units.2", reason="one unit of five adds in bfloat16")  # fmt: skip
healthy("stream-dtype", "autocast_tokens", prenorm_net, ids(), options={"amp": "bfloat16"},
        reason="branches in bfloat16 under autocast, the stream is float32 throughout")  # fmt: skip
healthy("stream-dtype", "autocast_convs", preact_net, images(), options={"amp": "bfloat16"},
        reason="under autocast the stream is bfloat16 from the first convolution on")  # fmt: skip

# --- non-finite ---


class Logarithm(nn.Module):
    def __init__(self, wrong: bool, width: int = 16) -> None:
        super().__init__()
        self.wrong, self.body = wrong, preact(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return x + (torch.log(h) if self.wrong else torch.log1p(h.abs()))


class Masked(nn.Module):
    """A row of the mask hides every token, or all but the row's own."""

    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong, self.norm, self.value = wrong, nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        t = x.shape[1]
        hidden = torch.ones(t, t, dtype=torch.bool).triu(0 if self.wrong else 1)
        scores = (h @ h.transpose(1, 2)).masked_fill(hidden, -math.inf)
        return x + scores.softmax(-1) @ self.value(h)


class HandNorm(nn.Module):
    """A norm by hand without an epsilon, on rows that are constant."""

    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.eps, self.inner = 0.0 if wrong else 1e-5, mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(x - 1e3)  # all zero
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True) + self.eps).sqrt()
        return self.inner(h) + x


pair("non-finite", "logarithm", lambda f: ConvNet([Logarithm(f and k == 2) for k in range(4)], end=bn_relu()), images(),
     severity="error", where="units.2", reason="log of negative numbers in one unit of four")  # fmt: skip
pair("non-finite", "masked_row", lambda f: TokenNet([m for k in range(3) for m in (Masked(f and k == 1),
     prenorm()[1])]), ids(), severity="error", where="layers.2", reason="softmax over a row that is masked "
     "everywhere")  # fmt: skip
pair("non-finite", "no_epsilon", lambda f: TokenNet([HandNorm(f) for _ in range(2)]), ids(), severity="error",
     where="layers.0", reason="0/0 in a norm without an epsilon")  # fmt: skip
healthy("non-finite", "causal", lambda: TokenNet([Rotary() for _ in range(3)]), ids(),
        reason="-inf in a causal mask is written on purpose")  # fmt: skip
