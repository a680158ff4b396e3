"""Programs with a unit that lacks something, or holds something that does nothing."""

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
)

# --- dead-op: a module of the unit never influences its output ---


class SecondReadsInput(nn.Module):
    """As in a well-known port of wide residual nets: the second convolution reads x, not the first one's output."""

    def __init__(self, wrong: bool, width: int = 16) -> None:
        super().__init__()
        self.wrong = wrong
        self.conv1, self.norm1 = conv(width), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = conv(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        h = self.norm2(self.conv2(x if self.wrong else h))
        return F.relu(x + h)


class DropoutUncalled(nn.Module):
    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong = wrong
        self.norm, self.attention, self.dropout = nn.LayerNorm(width), Attention(width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention(self.norm(x))
        return x + (h if self.wrong else self.dropout(h))


class ProjectionUnused(nn.Module):
    """The last layer's result goes into a name that nobody reads."""

    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong = wrong
        self.norm, self.up, self.gate, self.down = (
            nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.norm(x)) * torch.sigmoid(self.gate(x))
        out = self.down(h)
        return x + (h if self.wrong else out)


class NormUncalled(nn.Module):
    """Built with parameters that get no gradient, never called."""

    def __init__(self, wrong: bool, width: int = 16) -> None:
        super().__init__()
        self.wrong = wrong
        self.norm1, self.conv1, self.norm2, self.conv2 = (
            nn.GroupNorm(4, width), conv(width), nn.GroupNorm(4, width), conv(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(self.norm1(x).relu())
        h = h if self.wrong else self.norm2(h)
        h = self.conv2(h.relu())
        h += x
        return h


pair("dead-op", "second_conv", lambda f: ConvNet([SecondReadsInput(f) for _ in range(3)]), images(),
     severity="warning", where="conv1", reason="conv1 and norm1 lead nowhere")  # fmt: skip
pair("dead-op", "dropout", lambda f: TokenNet([m for _ in range(3) for m in (DropoutUncalled(f), prenorm()[1])]), ids(),
     severity="warning", where="dropout", reason="dropout is built and never called")  # fmt: skip
pair("dead-op", "projection", lambda f: TokenNet([ProjectionUnused(f and k == 1) for k in range(3)]), ids(),
     severity="warning", where="layers.1.down", reason="the output projection's result is dropped, in one of "
     "three units")  # fmt: skip
pair("dead-op", "norm", lambda f: ConvNet([NormUncalled(f) for _ in range(3)]), images(),
     severity="warning", where="norm2", reason="a norm with parameters is never called")  # fmt: skip


class TorchAttention(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.attention(h, h, h, need_weights=False)[0]


class ThroughAttributes(nn.Module):
    """Modules that only hold values: none is called, all are used."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv, self.drop, self.norm, self.shortcut = (
            conv(width), nn.Dropout(0.1), nn.BatchNorm2d(width), nn.Identity(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.conv2d(self.norm(x).relu(), self.conv.weight, padding=1)
        return x + F.dropout(h, self.drop.p, self.training)


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.units = nn.Sequential(*prenorm(), *prenorm())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.units(self.embed(tokens)), self.embed.weight)


healthy("dead-op", "multihead", lambda: TokenNet([m for _ in range(3) for m in (TorchAttention(), prenorm()[1])]),
        ids(), reason="out_proj is never called as a module, its weight is used")  # fmt: skip
healthy("dead-op", "attributes", lambda: ConvNet([ThroughAttributes() for _ in range(3)], end=bn_relu()), images(),
        reason="conv.weight and drop.p are read, an Identity stands idle")  # fmt: skip
healthy("dead-op", "tied", TiedHead, ids(), reason="the embedding's weight is the head")

# --- dead-unit: a unit that does nothing among units that live, or after training ---


class Scaled(nn.Module):
    """x + γ·F(x), γ one number a channel."""

    def __init__(self, branch: nn.Module, gain: float, width: int = 32) -> None:
        super().__init__()
        self.branch = branch
        self.gamma = nn.Parameter(torch.full((width,), gain))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gamma * self.branch(x)


class ReZero(nn.Module):
    """x + α·F(x), α one number."""

    def __init__(self, branch: nn.Module, alpha: float = 0.0) -> None:
        super().__init__()
        self.branch, self.alpha = branch, nn.Parameter(torch.tensor(alpha))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.alpha * self.branch(x)


class Detached(nn.Module):
    """The branch is computed where no graph is recorded."""

    def __init__(self, wrong: bool, branch: nn.Module) -> None:
        super().__init__()
        self.wrong, self.branch = wrong, branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.wrong:
            return x + self.branch(x)
        with torch.no_grad():
            h = self.branch(x)
        return x + h


def _shut_norms(shut: bool) -> nn.Module:
    """As a long training with decay on all parameters leaves it: one unit's last gain and bias went to zero."""
    net = ConvNet([Residual(conv_bn()) for _ in range(6)], end=bn_relu())
    for k, unit in enumerate(net.units):
        nn.init.uniform_(unit.branch[4].weight, 0.3, 1.0)
        nn.init.normal_(unit.branch[4].bias, std=0.1)
        if shut and k == 3:
            nn.init.constant_(unit.branch[4].weight, 1e-9)
            nn.init.zeros_(unit.branch[4].bias)
    return net


def _dead_relu(dead: bool) -> nn.Module:
    """One unit whose hidden values are all cut off: no output, no gradient."""
    net = TokenNet([Residual(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
                    for _ in range(6)])  # fmt: skip
    if dead:
        nn.init.constant_(net.layers[2].branch[1].bias, -100.0)
        nn.init.zeros_(net.layers[2].branch[3].bias)
    return net


def _gates(dead: bool) -> nn.Module:
    gates = [0.3, -0.2, 0.25, 0.4, 0.2, 0.35]
    if dead:
        gates[4] = 1e-9
    return TokenNet([ReZero(nn.Sequential(nn.LayerNorm(32), mlp()), a) for a in gates])


pair("dead-unit", "norm_gain", _shut_norms, images(), severity="warning", where="units.3",
     reason="one unit of six, whose last norm's gain decayed to nothing")  # fmt: skip
pair("dead-unit", "gate", _gates, ids(), severity="warning", where="layers.4",
     reason="one gate of six is zero, the others learned something")  # fmt: skip
pair("dead-unit", "dead_relu", _dead_relu, ids(), severity="warning", where="layers.2",
     reason="all hidden units of one branch are cut off")  # fmt: skip
pair("dead-unit", "no_grad", lambda f: ConvNet([Detached(f and k == 2, preact()) for k in range(5)], end=bn_relu()),
     images(), severity="warning", where="units.2", reason="one branch runs under no_grad")  # fmt: skip


class DropPath(nn.Module):
    def __init__(self, branch: nn.Module, rate: float) -> None:
        super().__init__()
        self.branch, self.rate = branch, rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.branch(x)
        if not self.training:
            return x + h
        keep = (torch.rand(x.shape[0], *[1] * (x.ndim - 1)) >= self.rate).to(x.dtype)
        return x + h * keep / (1 - self.rate)


def _zero_init() -> nn.Module:
    net = preact_net()
    for unit in net.units:
        nn.init.zeros_(unit.branch[5].weight)
    return net


healthy("dead-unit", "layer_scale", lambda: TokenNet([Scaled(u.branch, 1e-6) for _ in range(4) for u in prenorm()]),
        ids(), reason="LayerScale at 1e-6, before training")  # fmt: skip
healthy("dead-unit", "zero_init", _zero_init, images(), reason="the last layer of each branch starts at zero")
healthy("dead-unit", "rezero", lambda: TokenNet([ReZero(u.branch) for _ in range(4) for u in prenorm()]), ids(),
        reason="ReZero: all gates start at zero")  # fmt: skip
healthy("dead-unit", "drop_path", lambda: ConvNet([DropPath(preact(), 0.5) for _ in range(8)], end=bn_relu()),
        images(1), reason="a sampled zero of drop path")  # fmt: skip
