"""Programs whose fault shows only in training: modes that differ, blocks that are skipped, checkpoints, inverses."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from faults.case import healthy, pair
from faults.nets import (
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
    prenorm,
    prenorm_net,
    vectors,
)
from faults.programs.the_unit import DropPath

# --- train-eval-mismatch ---


class Dropped(nn.Module):
    """Drop path a sample; `kind` says how it goes wrong.

    ``"unscaled"``: kept branches are not divided by the share that is kept. ``"always"``: dropped in eval mode too.
    ``"eval scaled"``: multiplied by the share in eval mode although training divides by it already.
    """

    def __init__(self, branch: nn.Module, kind: str, rate: float = 0.5) -> None:
        super().__init__()
        self.branch, self.kind, self.rate = branch, kind, rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.branch(x)
        keep = 1 - self.rate
        if not self.training and self.kind != "always":
            return x + (h * keep if self.kind == "eval scaled" else h)
        mask = torch.bernoulli(torch.full((x.shape[0], *[1] * (x.ndim - 1)), keep))
        h = h * mask if self.kind == "unscaled" else h * mask / keep
        return x + h


class SkippedInPlace(nn.Module):
    """A whole block is skipped for the whole batch, and nothing makes up for it in eval mode."""

    def __init__(self, wrong: bool, width: int = 16, rate: float = 0.5) -> None:
        super().__init__()
        self.wrong, self.rate, self.branch = wrong, rate, conv_bn(width)
        nn.init.normal_(self.branch[4].bias, std=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        if self.training:
            y *= (torch.rand(()) >= self.rate).float() / (1.0 if self.wrong else 1 - self.rate)
        y += x
        return y


def _biased(branch: nn.Module) -> nn.Module:
    """A branch with a mean of its own, so that a mean can tell."""
    for module in branch.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, std=0.5)
    return branch


def _dropped_tokens(kind: str) -> nn.Module:
    return TokenNet([Dropped(_biased(u.branch), kind) for _ in range(4) for u in prenorm()])


def _tokens_16() -> torch.Tensor:
    return ids(16)()


pair("train-eval-mismatch", "unscaled", lambda f: _dropped_tokens("unscaled" if f else "right"), _tokens_16,
     severity="error", where=None, reason="drop path of 0.5 without 1/keep")  # fmt: skip
pair("train-eval-mismatch", "eval_scaled", lambda f: _dropped_tokens("eval scaled" if f else "right"), _tokens_16,
     severity="error", where=None, reason="scaled in both modes")  # fmt: skip
pair("train-eval-mismatch", "still_dropped", lambda f: _dropped_tokens("always" if f else "right"), _tokens_16,
     severity="error", where=None, reason="branches are dropped in eval mode too: two runs differ")  # fmt: skip
pair("train-eval-mismatch", "conv", lambda f: ConvNet([SkippedInPlace(f) for _ in range(6)]), images(8),
     severity="error", where=None, reason="batch-wise, in place, beside BatchNorm")  # fmt: skip
healthy("train-eval-mismatch", "fresh_batch_norm", lambda: ConvNet([Residual(conv_bn()) for _ in range(6)]), images(8),
        reason="fresh running statistics: the modes differ for a reason of their own")  # fmt: skip
healthy("train-eval-mismatch", "drop_path", lambda: ConvNet([DropPath(preact(), 0.3) for _ in range(6)],
        end=bn_relu()), images(8), reason="drop path as it should be, beside BatchNorm")  # fmt: skip
healthy("train-eval-mismatch", "dropout", lambda: TokenNet([Residual(nn.Sequential(*u.branch, nn.Dropout(0.1)))
        for _ in range(4) for u in prenorm()]), ids(16), reason="usual dropout")  # fmt: skip

# --- ddp-unsafe-skip and compile-unsafe-skip: blocks skipped in Python ---


class LayerDrop(nn.Module):
    """Skips its branch by the toss of a coin, or multiplies by it."""

    def __init__(self, branch: nn.Module, coin: str, rate: float = 0.5) -> None:
        super().__init__()
        self.branch, self.coin, self.rate = branch, coin, rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x + self.branch(x)
        if self.coin == "mask":
            return x + self.branch(x) * (torch.rand((), device=x.device) >= self.rate) / (1 - self.rate)
        if self.coin == "item":
            dropped = torch.rand(1).item() < self.rate
        elif self.coin == "tensor":
            dropped = bool(torch.rand(()) < self.rate)
        else:
            dropped = random.random() < self.rate
        return x if dropped else x + self.branch(x) / (1 - self.rate)


class SkipLoop(TokenNet):
    """The loop over the layers leaves some out."""

    def __init__(self, coin: str) -> None:
        super().__init__([u for _ in range(5) for u in prenorm()])
        self.coin = coin

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            if self.training and self.coin == "python" and random.uniform(0, 1) < 0.5:
                continue
            x = layer(x)
        return self.head(self.norm(x))


def _drop_convs(coin: str) -> nn.Module:
    return ConvNet([LayerDrop(preact(), coin) for _ in range(8)], end=bn_relu())


def _drop_tokens(coin: str) -> nn.Module:
    return TokenNet([LayerDrop(u.branch, coin) for _ in range(4) for u in prenorm()])


pair("ddp-unsafe-skip", "conv", lambda f: _drop_convs("tensor" if f else "mask"), images(), severity="warning",
     where="units", reason="bool of a random tensor decides whether the branch runs")  # fmt: skip
pair("ddp-unsafe-skip", "item", lambda f: _drop_tokens("item" if f else "mask"), ids(), severity="warning",
     where="layers", reason="torch.rand(1).item()")  # fmt: skip
pair("ddp-unsafe-skip", "loop", lambda f: SkipLoop("python" if f else "none"), ids(), severity="warning",
     where="layers", reason="the loop continues past a layer")  # fmt: skip


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = prenorm_net(3)
        for parameter in self.body.layers[:2].parameters():
            parameter.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body(tokens)


healthy("ddp-unsafe-skip", "frozen", Frozen, ids(), reason="frozen parameters have no gradient, and want none")
healthy("ddp-unsafe-skip", "eval", lambda: _drop_convs("tensor"), images(), mode="eval",
        reason="in eval mode nothing is skipped", options={"may": "warning"})  # fmt: skip

pair("compile-unsafe-skip", "conv", lambda f: _drop_convs("python" if f else "mask"), images(), severity="warning",
     where="units", reason="random.random() in forward")  # fmt: skip
pair("compile-unsafe-skip", "token", lambda f: _drop_tokens("item" if f else "mask"), ids(), severity="warning",
     where="layers", reason="torch.rand(1).item() in forward")  # fmt: skip
pair("compile-unsafe-skip", "loop", lambda f: SkipLoop("python" if f else "none"), ids(), severity="warning",
     where=None, reason="Python's random in the loop over layers")  # fmt: skip


class SkipFunctions(nn.Module):
    """Weights in a list and functions: no module runs or is left out, only operations are."""

    def __init__(self, coin: str, width: int = 32, layers: int = 6) -> None:
        super().__init__()
        self.coin = coin
        self.embed, self.head = nn.Embedding(50, width), nn.Linear(width, 50)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(width, width) * width**-0.5) for _ in range(layers))

    @staticmethod
    def branch(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(nn.functional.layer_norm(x, x.shape[-1:]) @ weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for weight in self.weights:
            if not self.training:
                x = x + self.branch(x, weight)
            elif self.coin == "mask":
                x = x + ((torch.rand(()) >= 0.5).to(x.dtype) / 0.5) * self.branch(x, weight)
            elif torch.rand(()).item() >= 0.5:
                x = x + self.branch(x, weight) / 0.5
        return self.head(x)


pair("compile-unsafe-skip", "functional", lambda f: SkipFunctions("item" if f else "mask"), ids(), severity="warning",
     where=None, reason="a random tensor decides in Python, between functions")  # fmt: skip
healthy("compile-unsafe-skip", "drop_path", lambda: ConvNet([DropPath(preact(), 0.3) for _ in range(4)],
        end=bn_relu()), images(), reason="randomness in tensors only")  # fmt: skip
healthy("compile-unsafe-skip", "dropout", lambda: TokenNet([Residual(nn.Sequential(*u.branch, nn.Dropout(0.2)))
        for _ in range(3) for u in prenorm()]), ids(), reason="usual dropout")  # fmt: skip

# --- checkpoint-side-effects ---


class Checkpointed(nn.Module):
    def __init__(self, branch: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self.branch, self.reentrant = branch, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x + self.branch(x)
        return x + checkpoint(self.branch, x, use_reentrant=self.reentrant)


class WholeUnit(nn.Module):
    """The checkpoint lies around the unit, add and all."""

    def __init__(self, branch: nn.Module, on: bool) -> None:
        super().__init__()
        self.on, self.unit = on, Residual(branch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.unit, x, use_reentrant=False) if self.on and self.training else self.unit(x)


class FrozenStem(nn.Module):
    """Reentrant checkpointing behind a frozen embedding: the first branch has no graph, its weights never learn."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.embed.requires_grad_(False)
        self.units = nn.ModuleList(Checkpointed(u.branch, reentrant=reentrant) for _ in range(2) for u in prenorm())
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for unit in self.units:
            x = unit(x)
        return self.head(x)


pair("checkpoint-side-effects", "batch_norm", lambda f: ConvNet([Checkpointed(conv_bn(), reentrant=False) if f
     else Residual(conv_bn()) for _ in range(3)]), images(), severity="warning", where="units",
     reason="BatchNorm inside a checkpointed branch counts each batch twice")  # fmt: skip
pair("checkpoint-side-effects", "whole_unit", lambda f: ConvNet([WholeUnit(preact(), f and k == 1) for k in range(3)],
     end=bn_relu()), images(), severity="warning", where="units.1", reason="one unit of three")  # fmt: skip
pair("checkpoint-side-effects", "frozen_input", FrozenStem, ids(), severity="warning", where="units",
     reason="a reentrant checkpoint on a frozen input yields no graph")  # fmt: skip
healthy("checkpoint-side-effects", "layer_norm", lambda: TokenNet([Checkpointed(u.branch, reentrant=False)
        for _ in range(3) for u in prenorm()]), ids(), reason="nothing in the branch counts")  # fmt: skip
healthy("checkpoint-side-effects", "eval", lambda: ConvNet([Checkpointed(conv_bn(), reentrant=False)
        for _ in range(3)]), images(), mode="eval", options={"may": "warning"},
        reason="in eval mode nothing is counted")  # fmt: skip

# --- reversible-inexact: a method inverse(y) ---


class Coupling(nn.Module):
    """y1 = x1 + F(x2), y2 = x2 + G(y1), along the channels (axis 1) or the width (axis -1)."""

    def __init__(self, f: nn.Module, g: nn.Module, axis: int) -> None:
        super().__init__()
        self.f, self.g, self.axis = f, g, axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, self.axis)
        a = a + self.f(b)
        b = b + self.g(a)
        return torch.cat([a, b], self.axis)

    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        a, b = y.chunk(2, self.axis)
        b = b - self.g(a)
        a = a - self.f(b)
        return torch.cat([a, b], self.axis)


class WrongOrder(Coupling):
    def __init__(self, wrong: bool, width: int = 16) -> None:
        super().__init__(mlp(width), mlp(width), -1)
        self.wrong = wrong

    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        if not self.wrong:
            return super().inverse(y)
        a, b = y.chunk(2, -1)
        a = a - self.f(b)
        b = b - self.g(a)
        return torch.cat([a, b], -1)


def _dropping(rate: float) -> Coupling:
    return Coupling(nn.Sequential(mlp(16), nn.Dropout(rate)), nn.Sequential(nn.LayerNorm(16), mlp(16)), -1)


class Batchwise(nn.Module):
    """A norm whose running statistics move between forward and inverse, and which uses them."""

    def __init__(self, moves: bool, width: int = 8) -> None:
        super().__init__()
        self.moves, self.conv = moves, conv(width)
        self.register_buffer("mean", torch.zeros(1, width, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.moves and self.training:
            self.mean.lerp_(x.detach().mean((0, 2, 3), keepdim=True), 0.5)
        return self.conv(F.relu(x - self.mean))


pair("reversible-inexact", "dropout", lambda f: TokenNet([_dropping(0.2 if f else 0.0) for _ in range(3)]), ids(),
     severity="error", where="layers", reason="dropout inside a reversible block")  # fmt: skip
pair("reversible-inexact", "statistics", lambda f: ConvNet([Coupling(Batchwise(f), Batchwise(f), 1)
     for _ in range(3)]), images(), severity="error", where="units", reason="running statistics move")  # fmt: skip
pair("reversible-inexact", "order", lambda f: TokenNet([WrongOrder(f and k == 1) for k in range(3)]), ids(),
     severity="error", where="layers.1", reason="undone in the wrong order, in one of three")  # fmt: skip
healthy("reversible-inexact", "batch_norm", lambda: ConvNet([Coupling(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(),
        conv(8)), nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), conv(8)), 1) for _ in range(3)]), images(),
        reason="BatchNorm on batch statistics inverts: it sees the same batch")  # fmt: skip
healthy("reversible-inexact", "no_inverse", prenorm_net, ids(), reason="nothing claims to be reversible")


class Codec(nn.Module):
    """A decoder has an `inverse` of another kind: it takes no output of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), Residual(nn.Sequential(nn.LayerNorm(16), mlp(16))))
        self.back = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def inverse(self, code: torch.Tensor, strength: float) -> torch.Tensor:
        return strength * self.back(code)


healthy("reversible-inexact", "other_inverse", Codec, vectors(4, 8), reason="a method of that name with another use")
