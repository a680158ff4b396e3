"""Programs whose norm stands at the wrong place: after the add in a deep net, before the split, missing, twice."""

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


class PostNorm(nn.Module):
    """norm(α·x + F(x))."""

    def __init__(self, branch: nn.Module, width: int = 32, alpha: float = 1.0) -> None:
        super().__init__()
        self.branch, self.norm, self.alpha = branch, nn.LayerNorm(width), alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm((x if self.alpha == 1 else self.alpha * x) + self.branch(x))


# --- post-norm-deep: norm after the add, deep, and collapse ---


class FunctionalPostNorm(nn.Module):
    """All layers in one forward; no norm is a module."""

    def __init__(self, layers: int, post: bool, width: int = 32) -> None:
        super().__init__()
        self.post, self.width = post, width
        self.embed = nn.Embedding(50, width)
        self.weights = nn.ParameterList(width**-0.5 * torch.randn(5, width, width) for _ in range(layers))
        for w in self.weights:
            w.data[[2, 4]] *= 0.5  # branch ends
        self.gains = nn.ParameterList(torch.ones(2, width) for _ in range(layers))
        self.head = nn.Linear(width, 50)

    def attend(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scores = (x @ w[0]) @ (x @ w[1]).transpose(1, 2) * self.width**-0.5
        return scores.softmax(-1) @ x @ w[2]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for w, g in zip(self.weights, self.gains, strict=True):
            if self.post:
                x = F.layer_norm(x + self.attend(x, w), (self.width,), g[0])
                x = F.layer_norm(x + (x @ w[3]).relu() @ w[4], (self.width,), g[1])
            else:
                x = x + self.attend(F.layer_norm(x, (self.width,), g[0]), w)
                x = x + (F.layer_norm(x, (self.width,), g[1]) @ w[3]).relu() @ w[4]
        return self.head(F.layer_norm(x, (self.width,)) if not self.post else x)


class Encoder(nn.Module):
    """PyTorch's own encoder."""

    def __init__(self, layers: int, *, first: bool, norm: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=first)
        end = nn.LayerNorm(32) if norm else None
        self.encoder = nn.TransformerEncoder(layer, layers, norm=end, enable_nested_tensor=False)
        for copy in self.encoder.layers:  # they start as copies of each other, a fault of its own
            for parameter in copy.parameters():
                if parameter.ndim > 1:
                    nn.init.xavier_uniform_(parameter)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens)))


def _deep(wrong: bool) -> nn.Module:
    if wrong:
        units = [PostNorm(b) for _ in range(60) for b in (Attention(), mlp())]
        return TokenNet(units, norm=nn.Identity())
    return prenorm_net(60)


def _deepnorm() -> nn.Module:
    layers = 60
    units = [PostNorm(b, alpha=(2 * layers) ** 0.25) for _ in range(layers) for b in (Attention(), mlp())]
    for unit in units:
        for name, weight in unit.branch.named_parameters():
            if weight.ndim > 1 and "qkv" not in name:
                weight.data *= (8 * layers) ** -0.25
    return TokenNet(units, norm=nn.Identity())


pair("post-norm-deep", "module", _deep, ids(), severity="error", where=None,
     reason="120 post-norm units of attention and MLP: all tokens become alike")  # fmt: skip
pair("post-norm-deep", "functional", lambda f: FunctionalPostNorm(60, f), ids(), severity="error", where=None,
     reason="the same without modules")  # fmt: skip
pair("post-norm-deep", "torch_encoder", lambda f: Encoder(60, first=not f, norm=not f), ids(), severity="error",
     where=None, options={"exhaustive": True}, reason="nn.TransformerEncoder, norm_first=False")  # fmt: skip
healthy("post-norm-deep", "mlp_only", lambda: TokenNet([PostNorm(mlp()) for _ in range(60)], norm=nn.Identity()),
        ids(), reason="60 post-norm MLP units: no token looks at another, and it trains")  # fmt: skip
healthy("post-norm-deep", "deepnorm", _deepnorm, ids(), reason="post-norm of 120 units with DeepNorm's constants")
healthy("post-norm-deep", "bert_like", lambda: TokenNet([nn.LayerNorm(32), *[PostNorm(b) for _ in range(6)
        for b in (Attention(), mlp())]], norm=nn.Identity()), ids(), reason="12 post-norm units")  # fmt: skip

# --- shortcut-after-norm: x = n(x) + F(n(x)) ---


class SplitAfterNorm(nn.Module):
    def __init__(self, wrong: bool, branch: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.wrong, self.norm, self.branch = wrong, nn.LayerNorm(width), branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wrong:
            x = self.norm(x)
            return x + self.branch(x)
        return x + self.branch(self.norm(x))


class SplitAfterBatchNorm(nn.Module):
    """The pre-activation is overwritten: the shortcut starts behind BN and ReLU."""

    def __init__(self, wrong: bool, width: int = 16) -> None:
        super().__init__()
        self.wrong, self.norm, self.conv1, self.norm2, self.conv2 = (
            wrong, nn.BatchNorm2d(width), conv(width), nn.BatchNorm2d(width), conv(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x
        x = self.norm(x)
        if self.wrong:
            shortcut = x
        y = self.conv2(F.relu(self.norm2(self.conv1(F.relu(x)))))
        y += shortcut
        return y


class HalfWrong(nn.Module):
    """A whole layer: attention is split before its norm, the MLP after."""

    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong, self.norm1, self.norm2 = wrong, nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = Attention(width), mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return (h if self.wrong else x) + self.mlp(h)


pair("shortcut-after-norm", "token", lambda f: TokenNet([SplitAfterNorm(f, b) for _ in range(4)
     for b in (Attention(), mlp())]), ids(), severity="warning", where="layers",
     reason="x = norm(x); x + branch(x) in one forward")  # fmt: skip
pair("shortcut-after-norm", "conv", lambda f: ConvNet([SplitAfterBatchNorm(f) for _ in range(5)], end=bn_relu()),
     images(), severity="warning", where="units", reason="the same with BatchNorm, in place")  # fmt: skip
pair("shortcut-after-norm", "half", lambda f: TokenNet([HalfWrong(f) for _ in range(4)]), ids(), severity="warning",
     where="layers", reason="one sublayer of each layer has its norm on the path, the other has not")  # fmt: skip


class SharedPreactivation(nn.Module):
    """At a transition the projection reads the activated value, as published."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm, self.conv1, self.norm2, self.conv2, self.project = (
            nn.BatchNorm2d(inside), conv(inside, outside, 2), nn.BatchNorm2d(outside), conv(outside),
            nn.Conv2d(inside, outside, 1, 2, bias=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x).relu()
        return self.project(h) + self.conv2(self.norm2(self.conv1(h)).relu())


def _staged() -> nn.Module:
    units = [Residual(preact()), Residual(preact()), SharedPreactivation(16, 32), Residual(preact(32))]
    return ConvNet([*units, Residual(preact(32))], end=bn_relu(32), out=32)


def _bert(norm: bool = True, layers: int = 4) -> nn.Module:
    units = [PostNorm(b) for _ in range(layers) for b in (Attention(), mlp())]
    return TokenNet([nn.LayerNorm(32), *units] if norm else units, norm=nn.Identity())


healthy("shortcut-after-norm", "bert", _bert, ids(), reason="post-norm behind an embedding norm: the same graph")
healthy("shortcut-after-norm", "transition", _staged, images(), reason="projections of a pre-activation net read the "
        "activated value")  # fmt: skip
healthy("shortcut-after-norm", "functional", lambda: FunctionalPostNorm(4, True), ids(), options={"may": "info"},
        reason="all-functional post-norm: undecided, and said so at most")  # fmt: skip

# --- missing-final-norm: pre-norm stack, nothing before the head ---


class PatchNet(nn.Module):
    """A vision transformer with RMS norms written as functions, pooled after its last norm or without."""

    def __init__(self, missing: bool, depth: int = 5, width: int = 32) -> None:
        super().__init__()
        self.missing = missing
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.branches = nn.ModuleList(b for _ in range(depth) for b in (Attention(width), mlp(width)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for branch in self.branches:
            x = torch.add(x, branch(F.rms_norm(x, x.shape[-1:])))
        x = x.mean(1)
        return self.head(x if self.missing else F.layer_norm(x, x.shape[-1:]))


def _grown(net: nn.Module, factor: float = 6.0) -> nn.Module:
    """Branches as large as training makes them: at PyTorch's initialisation they hardly move the stream."""
    for module in net.modules():
        if isinstance(module, nn.Linear) and module is not net.head:
            module.weight.data *= factor**0.5
    return net


pair("missing-final-norm", "token", lambda f: _grown(TokenNet([u for _ in range(5) for u in prenorm()],
     norm=nn.Identity() if f else None)), ids(), severity="warning", where=None,
     reason="ten pre-norm units, then the head")  # fmt: skip
pair("missing-final-norm", "patches", lambda f: _grown(PatchNet(f)), images(2, 16), severity="warning", where=None,
     reason="functional RMS norms in the branches, none before the head")  # fmt: skip
pair("missing-final-norm", "torch_encoder", lambda f: _grown(Encoder(5, first=True, norm=not f)), ids(),
     severity="warning", where=None, reason="nn.TransformerEncoder(norm_first=True) with norm=None")  # fmt: skip


def _norm_in_head() -> nn.Module:
    net = TokenNet([u for _ in range(5) for u in prenorm()], norm=nn.Identity())
    net.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 50))
    return net


healthy("missing-final-norm", "in_head", _norm_in_head, ids(), reason="the head begins with the norm")
healthy("missing-final-norm", "post_norm", _bert, ids(), reason="post-norm: the last unit ends in its norm")
healthy("missing-final-norm", "preact", preact_net, images(), reason="a pre-activation net with its last BN and ReLU")
healthy("missing-final-norm", "post_act", lambda: ConvNet([Residual(conv_bn()) for _ in range(4)]), images(),
        reason="norms inside the branches, none in front: no pre-norm net")  # fmt: skip

# --- double-norm: post-norm stack and another norm ---

pair("double-norm", "token", lambda f: TokenNet([PostNorm(b) for _ in range(4) for b in (Attention(), mlp())],
     norm=None if f else nn.Identity()), ids(), severity="info", where=None, reason="a norm of a norm")  # fmt: skip
pair("double-norm", "torch_encoder", lambda f: Encoder(3, first=False, norm=f), ids(), severity="info", where=None,
     reason="nn.TransformerEncoder(norm_first=False) with a norm")  # fmt: skip


class MaskedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = _bert()
        self.body.head = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 50))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(tokens)


healthy("double-norm", "masked_head", MaskedHead, ids(), reason="a layer and an activation stand between the norms")
healthy("double-norm", "pre_norm", prenorm_net, ids(), reason="pre-norm and its final norm")

# --- missing-final-activation: pre-activation net without the last BN and ReLU ---


class Signal(nn.Module):
    """A pre-activation net along time, with GroupNorm."""

    def __init__(self, missing: bool, width: int = 16) -> None:
        super().__init__()
        self.missing = missing
        self.stem = nn.Conv1d(1, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(6))
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(6))
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = x + layer(F.relu(norm(x)))
        if not self.missing:
            x = F.relu(F.group_norm(x, 4))
        return self.head(x.mean(2))


pair("missing-final-activation", "conv", lambda f: ConvNet([Residual(preact()) for _ in range(5)],
     end=None if f else bn_relu()), images(), severity="warning", where=None,
     reason="pre-activation units, then pooling and the head")  # fmt: skip
pair("missing-final-activation", "signal", Signal, vectors(2, 1, 32), severity="warning", where=None,
     reason="1-D, GroupNorm, functional")  # fmt: skip


class InHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 16), *[Residual(preact()) for _ in range(4)])
        self.head = nn.Sequential(
            nn.BatchNorm2d(16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


healthy("missing-final-activation", "in_head", InHead, images(), reason="BN and activation are the head's first layers")
healthy("missing-final-activation", "post_act", lambda: ConvNet([nn.Sequential(Residual(conv_bn()), nn.ReLU())
        for _ in range(4)]), images(), reason="post-activation: the last unit ends in ReLU")  # fmt: skip
healthy("missing-final-activation", "prenorm", prenorm_net, ids(), reason="transformers have a norm there and no ReLU")
