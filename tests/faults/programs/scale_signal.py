"""Programs whose signal grows, fades or becomes the same everywhere."""

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
    preact_net,
    prenorm,
    prenorm_net,
    vectors,
)
from faults.programs.placement_norm import PostNorm
from faults.programs.placement_path import Highway, Lambda, VectorNet, norm_mlp
from faults.programs.scale_init import Unnormalised

# --- stream-growth: like √L or faster ---


class Weighted(nn.Module):
    """x + s·F(norm(x)), F of about the norm's size."""

    def __init__(self, scale: float, width: int = 32) -> None:
        super().__init__()
        self.norm, self.first, self.second, self.scale = (
            nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width), scale,
        )  # fmt: skip
        nn.init.orthogonal_(self.first.weight)
        nn.init.orthogonal_(self.second.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.second(F.gelu(self.first(self.norm(x))) * 1.7)
        h *= self.scale
        return x + h


def _bn_stream(grows: bool) -> nn.Module:
    net = ConvNet([Residual(conv_bn(8)) for _ in range(32)], 8)
    for unit in net.units:
        nn.init.constant_(unit.branch[4].weight, 1.0 if grows else 0.05)
    return net


pair("stream-growth", "token", lambda f: TokenNet([Weighted(1 if f else 32**-0.5) for _ in range(32)]), ids(),
     severity="info", where=None, reason="32 pre-norm units, each adds as much")  # fmt: skip
pair("stream-growth", "conv", _bn_stream, images(), severity="info", where=None,
     reason="32 branches that end in a BatchNorm of gain 1")  # fmt: skip
healthy("stream-growth", "post_norm", lambda: TokenNet([PostNorm(b) for _ in range(4) for b in (Attention(), mlp())],
        norm=nn.Identity()), ids(), reason="a norm holds the stream")  # fmt: skip

# --- rank-collapse: tokens become alike ---


class Averaging(nn.Module):
    """A graph layer on a complete graph, x + s·Â(norm(x))W: every node gets the mean of all."""

    def __init__(self, scale: float, width: int = 32, *, keep: float = 1.0) -> None:
        super().__init__()
        self.scale, self.keep, self.layer = scale, keep, nn.Linear(width, width)
        nn.init.orthogonal_(self.layer.weight)
        nn.init.normal_(self.layer.bias, std=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(x, x.shape[-1:])
        a = torch.full((x.shape[1], x.shape[1]), 1 / x.shape[1])
        return x + self.scale * self.layer(a @ h)


class GraphNorm(nn.Module):
    """norm(x + ÂxW), dense graph, no modules but the parameters' holder."""

    def __init__(self, mixes: bool, width: int = 32) -> None:
        super().__init__()
        self.mixes = mixes
        self.weight = nn.Parameter(torch.randn(width, width) * width**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.mean(1, keepdim=True).expand_as(x) if self.mixes else x
        h = h.contiguous() @ self.weight
        h += x
        return F.layer_norm(h, h.shape[-1:])


pair("rank-collapse", "graph", lambda f: TokenNet([Averaging(3.0 if f else 0.05) for _ in range(40)]), ids(),
     severity="warning", where=None, reason="forty steps of averaging over all nodes")  # fmt: skip
pair("rank-collapse", "post_norm_graph", lambda f: TokenNet([GraphNorm(f) for _ in range(40)], norm=nn.Identity()),
     ids(), severity="warning", where=None, reason="the same with the norm after the add")  # fmt: skip
pair("rank-collapse", "attention", lambda f: TokenNet([PostNorm(Attention()) for _ in range(64 if f else 4)],
     norm=nn.Identity()), ids(), severity="warning", where=None, reason="64 post-norm attention units; the twin has "
     "four")  # fmt: skip
healthy("rank-collapse", "same_tokens", lambda: _without_positions(prenorm_net()),
        lambda: torch.full((2, 8), 7), reason="all tokens are one and the same from the start")  # fmt: skip
healthy("rank-collapse", "prenorm", prenorm_net, ids(), reason="tokens stay apart")
healthy("rank-collapse", "preact", preact_net, images(), reason="images stay images")


def _without_positions(net: TokenNet) -> TokenNet:
    nn.init.zeros_(net.position)
    return net


# --- gradient-vanishing ---


class Fading(nn.Module):
    """σ(g)·x + F(x), g learned, about zero: half of the stream at each unit."""

    def __init__(self, gated: bool, width: int = 16) -> None:
        super().__init__()
        self.gated, self.branch = gated, nn.Sequential(conv(width), nn.ReLU(), conv(width))
        self.gate = nn.Parameter(torch.full((1, width, 1, 1), -1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = 0.1 * self.branch(x)
        return x * torch.sigmoid(self.gate) + h if self.gated else x + h


class Small(nn.Module):
    """λ·x + ε·F(x)."""

    def __init__(self, factor: float, width: int = 32) -> None:
        super().__init__()
        self.factor, self.first, self.second = factor, nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = 0.1 * self.second(self.first(x).tanh())
        return x + h if self.factor == 1 else torch.add(h, x, alpha=self.factor)


def _tanh_stack(plain: bool) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(30)]
    return VectorNet(layers if plain else [Residual(layer) for layer in layers])


pair("gradient-vanishing", "lambda", lambda f: VectorNet([Small(0.5 if f else 1) for _ in range(24)]), vectors(16, 8),
     severity="warning", where=None, reason="0.5^24")  # fmt: skip
pair("gradient-vanishing", "gated_conv", lambda f: ConvNet([Fading(f) for _ in range(20)], end=bn_relu()), images(),
     severity="warning", where=None, reason="a sigmoid gate on the shortcut, 0.27 at each unit")  # fmt: skip
pair("gradient-vanishing", "plain", _tanh_stack, vectors(16, 8), severity="warning", where=None,
     reason="30 tanh layers in a row")  # fmt: skip
healthy("gradient-vanishing", "highway", lambda: VectorNet([Highway(32, "sigmoid", -3.0) for _ in range(16)]),
        vectors(16, 8), reason="gates that carry 95 %")  # fmt: skip

# --- gradient-exploding ---


def _hot_branch(width: int = 32) -> nn.Sequential:
    branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    for layer in (branch[0], branch[2]):
        nn.init.kaiming_normal_(layer.weight)
    return branch


pair("gradient-exploding", "token", lambda f: TokenNet([Unnormalised(_hot_branch(), 1 if f else 0.1)
     for _ in range(40)]), ids(), severity="warning", where=None, reason="40 MLPs at scale 1, no norm")  # fmt: skip
pair("gradient-exploding", "lambda", lambda f: ConvNet([Lambda(nn.Sequential(conv(8), nn.Tanh()), 2.0 if f else 1)
     for _ in range(20)], 8), images(), severity="warning", where=None, reason="λ = 2 on the "
     "shortcut")  # fmt: skip
healthy("gradient-exploding", "normed", lambda: TokenNet([Residual(norm_mlp()) for _ in range(40)]), ids(),
        reason="the same depth with norms")  # fmt: skip
healthy("gradient-exploding", "post_act", lambda: ConvNet([nn.Sequential(Residual(conv_bn()), nn.ReLU())
        for _ in range(12)]), images(), reason="a usual residual net")  # fmt: skip
healthy("gradient-vanishing", "token", lambda: TokenNet([u for _ in range(6) for u in prenorm()]), ids(),
        reason="a usual transformer")  # fmt: skip
