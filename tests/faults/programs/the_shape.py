"""Programs with a unit whose shapes do not fit, or that lacks its add."""

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
    conv_bn,
    ids,
    images,
    mlp,
    preact,
    preact_net,
    prenorm,
    prenorm_net,
    vectors,
)

# --- missing-projection: shapes do not fit ---


class Unprojected(nn.Module):
    def __init__(self, branch: nn.Module, shortcut: nn.Module, *, inplace: bool = False) -> None:
        super().__init__()
        self.branch, self.shortcut, self.inplace = branch, shortcut, inplace

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        if self.inplace:
            y += self.shortcut(x)
            return y
        return self.shortcut(x) + y


def _strided(wrong: bool) -> nn.Module:
    shortcut = nn.Identity() if wrong else nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
    return ConvNet([Residual(conv_bn()), Unprojected(conv_bn(16, 32, 2), shortcut), Residual(conv_bn(32))], out=32)


def _channels(wrong: bool) -> nn.Module:
    shortcut = nn.Identity() if wrong else nn.Conv2d(16, 24, 1)
    branch = nn.Sequential(conv(16), nn.ReLU(), conv(16, 24))
    return ConvNet([Unprojected(branch, shortcut, inplace=True)], out=24)


def _stride_only(wrong: bool) -> nn.Module:
    shortcut = nn.Identity() if wrong else nn.Conv2d(16, 16, 1, 2)
    return ConvNet([Residual(preact()), Unprojected(conv_bn(16, 16, 2), shortcut)])


def _wider(wrong: bool) -> nn.Module:
    shortcut = nn.Identity() if wrong else nn.Linear(32, 48)
    units = [*prenorm(), Unprojected(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 48)),
             shortcut), *prenorm(48)]  # fmt: skip
    net = TokenNet(units, norm=nn.LayerNorm(48))
    net.head = nn.Linear(48, 50)
    return net


_FORWARD = {"raises": "forward"}
pair("missing-projection", "stride_and_channels", _strided, images(), severity="error", where="units.1",
     options=_FORWARD, reason="half the size, twice the channels, identity shortcut")  # fmt: skip
pair("missing-projection", "channels", _channels, images(), severity="error", where="units.0",
     options=_FORWARD, reason="more channels, in place")  # fmt: skip
pair("missing-projection", "stride", _stride_only, images(), severity="error", where="units.1",
     options=_FORWARD, reason="half the size, same channels")  # fmt: skip
pair("missing-projection", "width", _wider, ids(), severity="error", where="layers.2",
     options=_FORWARD, reason="a wider stream of tokens")  # fmt: skip

# --- odd-size: pooled shortcut floors where the strided convolution ceils ---


def _pooled_image(floors: bool) -> nn.Module:
    pool = nn.AvgPool2d(2) if floors else nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)
    shortcut = nn.Sequential(pool, nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32))
    return ConvNet([Residual(conv_bn()), Unprojected(conv_bn(16, 32, 2), shortcut), Residual(conv_bn(32))], out=32)


class Audio(nn.Module):
    """Waveforms (N, 1, T): max pooling on the shortcut, strided convolution in the branch."""

    def __init__(self, floors: bool) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 16, 7, padding=3)
        self.branch = nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 16, 3, 2, 1))
        self.shortcut = nn.MaxPool1d(2) if floors else nn.MaxPool1d(2, ceil_mode=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.shortcut(x) + self.branch(x)
        return self.head(x.relu().mean(2))


class FunctionalPool(nn.Module):
    def __init__(self, floors: bool) -> None:
        super().__init__()
        self.floors = floors
        self.weight = nn.Parameter(0.1 * torch.randn(16, 16, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(F.relu(F.instance_norm(x)), self.weight, stride=2, padding=1)
        y += F.avg_pool2d(x, 2) if self.floors else x[:, :, ::2, ::2]
        return y


pair("odd-size", "avg_pool", _pooled_image, images(), severity="warning", where="units.1",
     options={"odd": images(2, 9)}, reason="AvgPool2d(2) on the shortcut, stride 2 in the branch")  # fmt: skip
pair("odd-size", "audio", Audio, vectors(2, 1, 64), severity="warning", where=None,
     options={"odd": vectors(2, 1, 65)}, reason="the same along time")  # fmt: skip
pair("odd-size", "functional", lambda f: ConvNet([FunctionalPool(f and k == 0) for k in range(1)]), images(2, 16),
     severity="warning", where="units.0", options={"odd": images(2, 15)}, reason="F.avg_pool2d, in place")  # fmt: skip


class FixedSize(nn.Module):
    """A vision transformer with positions for 16 patches of 4×4: other sizes fail, for a reason of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, 4)
        self.position = nn.Parameter(0.02 * torch.randn(16, 32))
        self.units = nn.Sequential(*prenorm(), *prenorm())
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.units(self.patch(x).flatten(2).transpose(1, 2) + self.position).mean(1))


healthy("odd-size", "fixed_size", FixedSize, images(2, 16), reason="fails at other sizes, but not at a join of a unit")
healthy("odd-size", "preact", preact_net, images(), reason="no stride anywhere")

# --- missing-shortcut ---


class Maybe(nn.Module):
    def __init__(self, branch: nn.Module, add: bool) -> None:
        super().__init__()
        self.branch, self.add = branch, add

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        return x + y if self.add else y


class FunctionalLayer(nn.Module):
    def __init__(self, add: bool, width: int = 32) -> None:
        super().__init__()
        self.add, self.norm, self.attention, self.mlp = add, nn.LayerNorm(width), Attention(width), mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.mlp(self.attention(self.norm(x)))
        if self.add:
            h += x
        return h


def _plain(deep: bool) -> nn.Module:
    layers = [m for _ in range(40) for m in (nn.Linear(32, 32), nn.Tanh())]
    if not deep:
        layers = [Residual(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh())) for _ in range(40)]
    return nn.Sequential(nn.Linear(8, 32), *layers, nn.Linear(32, 4))


pair("missing-shortcut", "conv", lambda f: ConvNet([Maybe(preact(), not (f and k == 4)) for k in range(8)],
     end=bn_relu()), images(), severity="warning", where="units.4", reason="one unit of eight")  # fmt: skip
pair("missing-shortcut", "token", lambda f: TokenNet([FunctionalLayer(not (f and k == 2)) for k in range(6)]), ids(),
     severity="warning", where="layers.2", reason="one layer of six, in place")  # fmt: skip
pair("missing-shortcut", "plain", _plain, vectors(8, 8), severity="warning", where=None,
     reason="40 tanh layers without a shortcut: the gradient decays")  # fmt: skip


def _orthogonal() -> nn.Module:
    layers = [nn.Linear(32, 32, bias=False) for _ in range(30)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
    return nn.Sequential(nn.Linear(8, 32), *layers, nn.Linear(32, 4))


class Dense(nn.Module):
    """Concatenation is a shortcut, too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + 4 * k), nn.ReLU(), conv(8 + 4 * k, 4)) for k in range(24)
        )
        self.head = nn.Linear(104, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return self.head(x.mean((2, 3)))


healthy("missing-shortcut", "orthogonal", _orthogonal, vectors(8, 8), reason="30 plain layers whose gradient keeps")
healthy("missing-shortcut", "dense", Dense, images(), reason="shortcuts by concatenation")
healthy("missing-shortcut", "prenorm", prenorm_net, ids(), reason="every unit adds")
