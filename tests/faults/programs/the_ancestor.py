"""Programs that add the wrong thing: the stream twice, an older stream, another shape."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from faults.case import healthy, pair
from faults.nets import (
    Attention,
    ConvNet,
    Residual,
    TokenNet,
    bn_relu,
    conv,
    ids,
    images,
    mlp,
    preact,
    preact_net,
    prenorm,
    prenorm_net,
    vectors,
)

# --- double-add: the same stream twice ---


class Twice(nn.Module):
    """Adds around units that add already."""

    def __init__(self, inner: nn.Module, twice: bool) -> None:
        super().__init__()
        self.inner, self.twice = inner, twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x) if self.twice else self.inner(x)


class TwiceInPlace(nn.Module):
    def __init__(self, twice: bool, width: int = 16) -> None:
        super().__init__()
        self.twice = twice
        self.conv, self.norm = conv(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x.relu()))
        y += x
        if self.twice:
            y += x
        return y


class AttentionThatAdds(nn.Module):
    """A sublayer with its own residual, as some libraries have it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.attention, self.dropout = nn.LayerNorm(width), Attention(width), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.attention(self.norm(x)))


pair("double-add", "conv", lambda f: ConvNet([Twice(Residual(preact()), f) for _ in range(4)], end=bn_relu()), images(),
     severity="error", where="units", reason="inside the block and again outside")  # fmt: skip
pair("double-add", "token", lambda f: TokenNet([m for k in range(3) for m in (Twice(AttentionThatAdds(), f and k == 1),
     prenorm()[1])]), ids(), severity="error", where="layers.2", reason="one layer of three adds around a sublayer "
     "that adds")  # fmt: skip
pair("double-add", "in_place", lambda f: ConvNet([TwiceInPlace(f) for _ in range(4)], end=bn_relu()), images(),
     severity="error", where="units", reason="y += x twice in one forward")  # fmt: skip


class LongSkip(nn.Module):
    """The body of an SR net: units, a convolution, and a skip around them all."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(*[Residual(nn.Sequential(conv(width), nn.ReLU(), conv(width))) for _ in range(3)])
        self.last = conv(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(self.body(x))


class Nested(nn.Module):
    """An inner unit between two layers of the outer unit's branch."""

    def __init__(self, nested: bool = True, width: int = 16) -> None:
        super().__init__()
        self.nested = nested
        self.norm, self.reduce, self.expand = nn.BatchNorm2d(width), nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1)
        self.inner = preact(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.reduce(self.norm(x).relu())
        u = u + self.inner(u) if self.nested else self.inner(u)
        return x + self.expand(u)


class NestedToken(nn.Module):
    """A feed-forward branch with its own skip at its hidden width."""

    def __init__(self, nested: bool = True, width: int = 32) -> None:
        super().__init__()
        self.nested = nested
        self.norm, self.up, self.down, self.inside = (
            nn.LayerNorm(width), nn.Linear(width, 48), nn.Linear(48, width), mlp(48),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = F.gelu(self.up(self.norm(x)))
        v = self.inside(u)
        if self.nested:
            v += u
        return torch.add(x, self.down(v))


healthy("double-add", "long_skip", lambda: ConvNet([LongSkip()]), images(),
        reason="a convolution stands before the outer add: the identity path is single")  # fmt: skip
healthy("double-add", "nested", lambda: ConvNet([Nested() for _ in range(3)], end=bn_relu()), images(),
        reason="a unit inside a branch")  # fmt: skip

# --- nested-unit: to be reported, not condemned ---

pair("nested-unit", "conv", lambda f: ConvNet([Nested(f) for _ in range(3)], end=bn_relu()), images(),
     severity="info", where="units", reason="weights lie between inner and outer x")  # fmt: skip
pair("nested-unit", "token", lambda f: TokenNet([NestedToken(f) for _ in range(3)]), ids(),
     severity="info", where="layers", reason="a feed-forward branch with its own skip")  # fmt: skip
healthy("nested-unit", "prenorm", prenorm_net, ids(), reason="units one after the other")

# --- wrong-ancestor: the second add takes the block's first input ---


class Layer(nn.Module):
    """Two pre-norm units in one module."""

    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong = wrong
        self.norm1, self.attention, self.norm2, self.mlp = (
            nn.LayerNorm(width), Attention(width), nn.LayerNorm(width), mlp(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.norm1(x))
        return (x if self.wrong else h) + self.mlp(self.norm2(h))


class PostNormLayer(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x + self.attention(x))
        return self.norm2((x if self.wrong else h) + self.mlp(h))


class TwoConvUnits(nn.Module):
    def __init__(self, wrong: bool, width: int = 16) -> None:
        super().__init__()
        self.wrong = wrong
        self.first, self.second = preact(width), preact(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = x
        y = self.first(x)
        y += skip
        z = self.second(y)
        z += skip if self.wrong else y
        return z


pair("wrong-ancestor", "token", lambda f: TokenNet([Layer(f) for _ in range(3)]), ids(), severity="error",
     where="layers", reason="x + mlp(h) instead of h + mlp(h): attention's unit is jumped")  # fmt: skip
pair("wrong-ancestor", "post_norm", lambda f: TokenNet([PostNormLayer(f) for _ in range(3)], norm=nn.Identity()), ids(),
     severity="error", where="layers", reason="the same behind norms after the add")  # fmt: skip
pair("wrong-ancestor", "conv", lambda f: ConvNet([TwoConvUnits(f and k == 1) for k in range(3)], end=bn_relu()),
     images(), severity="error", where="units.1", reason="skip is never renewed, in place")  # fmt: skip


class Parallel(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        return x + self.attention(h) + self.mlp(h)


healthy("wrong-ancestor", "parallel", lambda: TokenNet([Parallel(False) for _ in range(3)]), ids(),
        reason="attention and MLP side by side read one x")  # fmt: skip
healthy("wrong-ancestor", "nested", lambda: ConvNet([Nested() for _ in range(3)], end=bn_relu()), images(),
        reason="weights lie between the inner and the outer x")  # fmt: skip
healthy("wrong-ancestor", "nested_token", lambda: TokenNet([NestedToken() for _ in range(3)]), ids(),
        reason="the inner x is a hidden value of the branch")  # fmt: skip
healthy("wrong-ancestor", "long_skip", lambda: ConvNet([LongSkip()]), images(),
        reason="a long skip around units, closed by a convolution")  # fmt: skip
healthy("wrong-ancestor", "preact", preact_net, images(), reason="a chain of units")

# --- broadcast-add: shapes differ and broadcast ---


class Column(nn.Module):
    """(N, D) plus (N, 1, D) is (N, N, D)."""

    def __init__(self, forgot: bool, width: int = 16) -> None:
        super().__init__()
        self.forgot = forgot
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.down(F.gelu(self.up(self.norm(x).unsqueeze(1))))
        return x + (h if self.forgot else h.squeeze(1))


class Transposed(nn.Module):
    """A signal held as (N, C, L, 1); the branch turns it round and forgets to turn it back."""

    def __init__(self, forgot: bool, width: int = 16) -> None:
        super().__init__()
        self.forgot = forgot
        self.norm = nn.GroupNorm(4, width)
        self.conv = nn.Conv2d(width, width, (1, 3), padding=(0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(self.norm(x).relu().transpose(2, 3))
        return x + (h if self.forgot else h.transpose(2, 3))


class Pooled(nn.Module):
    """Global context. (N, C) is laid over the last two axes where (N, C, 1, 1) is meant."""

    def __init__(self, forgot: bool, width: int = 8) -> None:
        super().__init__()
        self.forgot = forgot
        self.fc = mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        context = self.fc(x.mean((2, 3)))
        return x + (context if self.forgot else context[:, :, None, None])


def _vector_net(forgot: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), Column(False), Column(False), Column(forgot), nn.LayerNorm(16))


def _signal_net(forgot: bool) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 16, 1), Transposed(False), Transposed(forgot), nn.Conv2d(16, 4, 1))


pair("broadcast-add", "column", _vector_net, vectors(4, 8), severity="error", where="3",
     reason="a missing squeeze: the output grows to (N, N, D)")  # fmt: skip
pair("broadcast-add", "transposed", _signal_net, vectors(2, 1, 12, 1), severity="error", where="2",
     reason="(N, C, L, 1) plus (N, C, 1, L) is (N, C, L, L)")  # fmt: skip
pair("broadcast-add", "pooled", lambda f: ConvNet([Pooled(f) for _ in range(2)], 8), images(8, 8), severity="info",
     where="units", twin_options={"may": "info"}, reason="a broadcast that keeps x's shape cannot be told from global "
     "context")  # fmt: skip
healthy("broadcast-add", "global_context", lambda: ConvNet([m for _ in range(3) for m in (Residual(preact(8)),
        Pooled(False))], 8, end=bn_relu(8)), images(), options={"may": "info"}, reason="x + context of shape "
        "(N, C, 1, 1), as in GCNet")  # fmt: skip
healthy("broadcast-add", "positions", prenorm_net, ids(), reason="positions (T, D) are added to (N, T, D)")
