"""Programs with something on the path that should be clean: activation, norm, scale, projection, dropout, gate."""

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
from faults.programs.placement_norm import PostNorm


class After(nn.Module):
    """f(h(x) + F(x))."""

    def __init__(self, branch: nn.Module, after: nn.Module | None = None, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.after, self.shortcut = branch, after or nn.Identity(), shortcut or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.shortcut(x) + self.branch(x))


class VectorNet(nn.Module):
    """(N, 8) to (N, 4)."""

    def __init__(self, units: list[nn.Module], width: int = 32, end: nn.Module | None = None) -> None:
        super().__init__()
        self.stem, self.units, self.end = nn.Linear(8, width), nn.Sequential(*units), end or nn.Identity()
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.end(self.units(self.stem(x))))


def norm_mlp(width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), *mlp(width))


# --- relu-after-add-deep ---


class ReluLinear(nn.Module):
    def __init__(self, on_path: bool, width: int = 32) -> None:
        super().__init__()
        self.on_path, self.norm, self.layer = on_path, nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.layer(x if self.on_path else x.relu()))
        h += x
        return h.relu_() if self.on_path else h


def _relu_conv(on_path: bool) -> nn.Module:
    branch = [nn.Sequential(conv(8), nn.BatchNorm2d(8)) for _ in range(110)]
    if on_path:
        return ConvNet([After(b, nn.ReLU()) for b in branch], 8)
    return ConvNet([Residual(nn.Sequential(nn.ReLU(), *b)) for b in branch], 8, end=nn.ReLU())


pair("relu-after-add-deep", "conv", _relu_conv, images(), severity="warning", where=None,
     reason="110 post-activation units")  # fmt: skip
pair("relu-after-add-deep", "linear", lambda f: VectorNet([ReluLinear(f) for _ in range(120)]), vectors(16, 8),
     severity="warning", where=None, reason="120 units of one linear layer, in place")  # fmt: skip
healthy("relu-after-add-deep", "eight", lambda: ConvNet([After(conv_bn(), nn.ReLU()) for _ in range(8)]), images(),
        reason="post-activation of ResNet-18's depth")  # fmt: skip
healthy("relu-after-add-deep", "sixteen", lambda: ConvNet([After(conv_bn(8), nn.ReLU()) for _ in range(16)], 8),
        images(), reason="post-activation of ResNet-50's number of units")  # fmt: skip

# --- nonnegative-branch: the stream can only grow ---


class Squared(nn.Module):
    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong, self.norm, self.first, self.second = (
            wrong, nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        if self.wrong:
            return x + self.second(self.first(h)).relu().square()
        return x + self.second(self.first(h).relu().square())


class EndsInPlace(nn.Module):
    def __init__(self, wrong: bool, width: int = 16) -> None:
        super().__init__()
        self.wrong, self.conv, self.norm = wrong, conv(width), nn.GroupNorm(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.conv(x if self.wrong else x.relu()))
        return x + (F.relu_(h) if self.wrong else h)


pair("nonnegative-branch", "conv", lambda f: ConvNet([Residual(nn.Sequential(conv(16), nn.BatchNorm2d(16), nn.ReLU())
     if f else nn.Sequential(nn.ReLU(), conv(16), nn.BatchNorm2d(16))) for _ in range(6)]), images(),
     severity="warning", where="units", reason="conv, BN, ReLU as the whole branch")  # fmt: skip
pair("nonnegative-branch", "squared", lambda f: TokenNet([Squared(f) for _ in range(6)]), ids(), severity="warning",
     where="layers", reason="a squared ReLU ends the branch")  # fmt: skip
pair("nonnegative-branch", "in_place", lambda f: ConvNet([EndsInPlace(f) for _ in range(6)]), images(),
     severity="warning", where="units", reason="F.relu_ before the add")  # fmt: skip


class Gated(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body, self.gate = preact(width), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return x + h * torch.sigmoid(self.gate(h.mean((2, 3), keepdim=True)))


healthy("nonnegative-branch", "gated", lambda: ConvNet([Gated() for _ in range(4)], end=bn_relu()), images(),
        reason="only the gate is non-negative")  # fmt: skip
healthy("nonnegative-branch", "post_act", lambda: ConvNet([After(conv_bn(), nn.ReLU()) for _ in range(4)]), images(),
        reason="the ReLU stands after the add, the branch ends in BN")  # fmt: skip
healthy("nonnegative-branch", "gelu_inside", prenorm_net, ids(), reason="the activation is inside the branch")

# --- norm-after-add: BatchNorm on the path ---


class VectorBatchNorm(nn.Module):
    """BatchNorm written as a function, with gain and shift of its own."""

    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong, self.branch = wrong, mlp(width)
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None, None, self.gain, self.shift, training=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normed(x + self.branch(x)) if self.wrong else x + self.normed(self.branch(x))


def _bn_conv(wrong: bool) -> nn.Module:
    def branch() -> nn.Sequential:
        return nn.Sequential(conv(16), nn.BatchNorm2d(16), nn.ReLU(), conv(16))

    if wrong:
        return ConvNet([After(branch(), nn.Sequential(nn.BatchNorm2d(16), nn.ReLU())) for _ in range(6)])
    return ConvNet([After(nn.Sequential(branch(), nn.BatchNorm2d(16)), nn.ReLU()) for _ in range(6)])


pair("norm-after-add", "conv", _bn_conv, images(), severity="warning", where="units", reason="ReLU(BN(x + F(x)))")
pair("norm-after-add", "functional", lambda f: VectorNet([VectorBatchNorm(f) for _ in range(6)]), vectors(16, 8),
     severity="warning", where="units", reason="F.batch_norm of the sum")  # fmt: skip
healthy("norm-after-add", "final", preact_net, images(), reason="the last BN of a pre-activation net is its end")
healthy("norm-after-add", "post_norm", lambda: TokenNet([PostNorm(b) for _ in range(4) for b in (Attention(), mlp())],
        norm=nn.Identity()), ids(), reason="LayerNorm after the add, as published, not deep")  # fmt: skip

# --- scaled-shortcut: λ^L ---


class Lambda(nn.Module):
    def __init__(self, branch: nn.Module, factor: float, spelling: str = "*") -> None:
        super().__init__()
        self.branch, self.factor, self.spelling = branch, factor, spelling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.branch(x)
        if self.factor == 1:
            return x + h
        if self.spelling == "alpha":
            return torch.add(h, x, alpha=self.factor)
        if self.spelling == "in place":
            h += self.factor * x
            return h
        return x * self.factor + h


pair("scaled-shortcut", "conv", lambda f: ConvNet([Lambda(preact(), 0.5 if f else 1) for _ in range(10)],
     end=bn_relu()), images(), severity="warning", where="units", reason="0.5·x over ten units")  # fmt: skip
pair("scaled-shortcut", "alpha", lambda f: TokenNet([Lambda(norm_mlp(), 0.8 if f else 1, "alpha") for _ in range(10)]),
     ids(), severity="warning", where="layers", reason="torch.add(h, x, alpha=0.8)")  # fmt: skip
pair("scaled-shortcut", "growing", lambda f: ConvNet([Lambda(preact(), 1.5 if f else 1, "in place") for _ in range(8)],
     end=bn_relu()), images(), severity="warning", where="units", reason="λ > 1, in place")  # fmt: skip


class ScaledBranch(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * self.branch(x)


class LearnedOne(nn.Module):
    def __init__(self, branch: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.branch, self.scale = branch, nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + self.branch(x)


healthy("scaled-shortcut", "branch", lambda: ConvNet([ScaledBranch(preact()) for _ in range(8)], end=bn_relu()),
        images(), reason="the branch is scaled, not the shortcut")  # fmt: skip
healthy("scaled-shortcut", "deepnorm", lambda: TokenNet([PostNorm(b, alpha=2.0) for _ in range(5)
        for b in (Attention(), mlp())], norm=nn.Identity()), ids(), reason="a norm follows: the scale does not add up "
        "over units")  # fmt: skip
healthy("scaled-shortcut", "learned_one", lambda: TokenNet([LearnedOne(u.branch) for _ in range(4) for u in prenorm()]),
        ids(), reason="a learned scale of the shortcut that starts at 1")  # fmt: skip

# --- projected-shortcut: a projection where nothing has to fit ---

pair("projected-shortcut", "conv", lambda f: ConvNet([After(preact(), None, nn.Conv2d(16, 16, 1, bias=False) if f
     else None) for _ in range(6)], end=bn_relu()), images(), severity="warning", where="units",
     reason="1×1 on every shortcut, same shape")  # fmt: skip
pair("projected-shortcut", "token", lambda f: TokenNet([After(norm_mlp(), None, nn.Linear(32, 32) if f else None)
     for _ in range(6)]), ids(), severity="warning", where="layers", reason="linear on every shortcut")  # fmt: skip
pair("projected-shortcut", "normed", lambda f: ConvNet([After(conv_bn(), nn.ReLU(), nn.Sequential(nn.Conv2d(16, 16, 1,
     bias=False), nn.BatchNorm2d(16)) if f and k in (1, 3) else None) for k in range(6)]), images(),
     severity="warning", where="units", reason="1×1 and BN on two units of six")  # fmt: skip


class LowRank(nn.Module):
    """W x + B A x: an adapter, no residual unit."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layer, self.down, self.up = nn.Linear(width, width), nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


class Rep(nn.Module):
    """Identity, 1×1 and 3×3 side by side, as RepVGG trains."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.one, self.three = (
            nn.BatchNorm2d(width), nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)),
            nn.Sequential(conv(width), nn.BatchNorm2d(width)),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(x) + self.one(x) + self.three(x))


def _transitions() -> nn.Module:
    def change(inside: int, outside: int, stride: int) -> nn.Module:
        return After(conv_bn(inside, outside, stride), nn.ReLU(), nn.Conv2d(inside, outside, 1, stride))

    units = [change(16, 24, 1), After(conv_bn(24), nn.ReLU()), change(24, 32, 2), After(conv_bn(32), nn.ReLU())]
    return ConvNet(units, out=32)


healthy("projected-shortcut", "transitions", _transitions, images(), reason="projections where width or size change")
healthy("projected-shortcut", "low_rank", lambda: TokenNet([Residual(nn.Sequential(nn.LayerNorm(32), LowRank(),
        nn.GELU(), LowRank())) for _ in range(4)]), ids(), reason="adapters inside the branches")  # fmt: skip
healthy("projected-shortcut", "rep", lambda: ConvNet([Rep() for _ in range(4)]), images(),
        reason="an identity stands beside the 1×1")  # fmt: skip

# --- dropout-on-shortcut ---


class DropConv(nn.Module):
    def __init__(self, wrong: bool, width: int = 16) -> None:
        super().__init__()
        self.wrong, self.branch = wrong, preact(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.branch(x)
        if self.wrong:
            return F.dropout2d(x, 0.2, self.training) + h
        return x + F.dropout2d(h, 0.2, self.training)


pair("dropout-on-shortcut", "sum", lambda f: TokenNet([After(nn.Sequential(nn.LayerNorm(32), b), nn.Dropout(0.1))
     if f else Residual(nn.Sequential(nn.LayerNorm(32), b, nn.Dropout(0.1))) for _ in range(4)
     for b in (Attention(), mlp())]), ids(), severity="warning", where="layers", reason="on the sum")  # fmt: skip
pair("dropout-on-shortcut", "shortcut", lambda f: ConvNet([DropConv(f) for _ in range(6)], end=bn_relu()), images(),
     severity="warning", where="units", reason="F.dropout2d(x) + F(x)")  # fmt: skip
pair("dropout-on-shortcut", "one", lambda f: TokenNet([After(norm_mlp(), None, nn.Dropout(0.3) if f and k == 2 else
     None) for k in range(6)]), ids(), severity="warning", where="layers.2", reason="one unit of six")  # fmt: skip
healthy("dropout-on-shortcut", "embedding", lambda: TokenNet([nn.Dropout(0.1), *prenorm(), *prenorm(),
        nn.Dropout(0.1)]), ids(), reason="dropout before the first and after the last unit")  # fmt: skip

# --- gates ---


class Highway(nn.Module):
    """t·F(x) + (1 - t)·x."""

    def __init__(self, width: int, bound: str, bias: float, *, image: bool = False) -> None:
        super().__init__()
        self.bound = bound
        self.norm = nn.GroupNorm(4, width) if image else nn.LayerNorm(width)
        self.layer = conv(width) if image else nn.Linear(width, width)
        self.gate = nn.Conv2d(width, width, 1) if image else nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.norm(x)
        t = {"sigmoid": torch.sigmoid, "none": lambda v: v, "exp": torch.exp}[self.bound](self.gate(n))
        h = self.layer(n.relu())
        if self.bound == "exp":
            return x * t + h
        return t * h + (1 - t) * x


def _highway(bound: str, bias: float, depth: int = 16) -> nn.Module:
    return VectorNet([Highway(32, bound, bias) for _ in range(depth)])


def _conv_highway(bound: str, bias: float, depth: int = 10) -> nn.Module:
    return ConvNet([Highway(16, bound, bias, image=True) for _ in range(depth)])


pair("gate-unbounded", "no_sigmoid", lambda f: _highway("none" if f else "sigmoid", -1.0), vectors(16, 8),
     severity="error", where="units", reason="the sigmoid is forgotten: 1 - t is about 2")  # fmt: skip
pair("gate-unbounded", "exponential", lambda f: _conv_highway("exp" if f else "sigmoid", 0.5, 6), images(),
     severity="error", where="units", reason="exp as the shortcut's gate")  # fmt: skip


class SwiGlu(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.gate, self.down = (
            nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(self.up(h) * self.gate(h))


healthy("gate-unbounded", "bilinear", lambda: TokenNet([SwiGlu() for _ in range(5)]), ids(),
        reason="an unbounded product inside the branch is no gate of the stream")  # fmt: skip
pair("gate-shut", "branch", lambda f: _highway("sigmoid", -30.0 if f else -1.0), vectors(16, 8), severity="warning",
     where="units", reason="bias -30: every branch is shut")  # fmt: skip
pair("gate-shut", "shortcut", lambda f: _conv_highway("sigmoid", 30.0 if f else 0.0), images(), severity="warning",
     where="units", reason="bias +30: every shortcut is shut")  # fmt: skip
healthy("gate-shut", "published", lambda: _highway("sigmoid", -3.0), vectors(16, 8),
        reason="the published bias of highway nets: the branch is open a little")  # fmt: skip
