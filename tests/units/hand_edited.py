"""Models and what somebody gets who edits their code by hand: no line of the product is used here.

Shapes: N batch, C channels, H height, W width, T tokens, D width. ``Edit`` has the fields of an alteration.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ConvNet", "Edit", "TokenNet", "train", "with_forward"]


@dataclass(frozen=True)
class Edit:
    """What is edited by hand."""

    branch: float = 1.0
    branch_gradient: float | None = None
    shortcut: float | str = "keep"
    after: str = "keep"
    norm: str = "keep"
    dropout: str = "keep"

    def of_branch(self, f: Tensor) -> Tensor:
        """F's output, edited."""
        if self.branch != 1.0:
            f = f * self.branch
        if self.branch_gradient is not None and f.requires_grad:
            f = f.clone()
            f.register_hook(lambda g, k=self.branch_gradient: g * k)
        return f

    def of_shortcut(self, h: Tensor, x: Tensor) -> Tensor:
        """The shortcut's output, edited."""
        if self.shortcut == "identity":
            return x
        return h if self.shortcut == "keep" else h * self.shortcut


class ConvUnit(nn.Module):
    """A unit of images whose shortcut, activation and norm are what is asked for."""

    def __init__(self, width: int, shortcut: str, after: str) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.after = {"relu": nn.ReLU(inplace=True), "norm": nn.BatchNorm2d(width), "drop": nn.Dropout(0.2)}[after]
        self.shortcut = {
            "identity": nn.Identity(),
            "conv": nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)),
            "dropout": nn.Dropout(0.3),
            "scale": nn.Identity(),
        }[shortcut]
        self.kind, self.post = shortcut, after

    def f(self, x: Tensor) -> Tensor:
        """The branch."""
        return self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        """The unit as its author wrote it: the branch's memory takes the sum."""
        y = self.f(x)
        y += 0.5 * x if self.kind == "scale" else self.shortcut(x)
        return self.after(y)

    def edited(self, x: Tensor, e: Edit) -> Tensor:
        """The unit with an edit."""
        f = e.of_branch(self.f(self.after(x) if e.norm == "into_branch" else x))
        if self.kind == "scale":
            h = 0.5 * x
        elif e.shortcut == "identity" or (self.kind == "dropout" and e.dropout == "off"):
            h = x
        else:
            h = self.shortcut(x)
        y = e.of_shortcut(h, x) + f
        skip = {"relu": e.after == "skip", "norm": "skip" in e.after or "into" in e.norm, "drop": e.dropout == "off"}
        return y if skip[self.post] else self.after(y)


class ConvNet(nn.Module):
    """(N,3,H,W) → (N,4): a stem, units of all kinds, a head."""

    UNITS = (("identity", "relu"), ("conv", "relu"), ("dropout", "norm"), ("scale", "drop"), ("identity", "norm"))

    def __init__(self, edits: dict[int, Edit] | None = None, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.units = nn.ModuleList(ConvUnit(width, s, a) for s, a in self.UNITS)
        self.head = nn.Linear(width, 4)
        self.edits = edits or {}

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.stem(x)
        for k, unit in enumerate(self.units):
            x = unit.edited(x, self.edits[k]) if k in self.edits else unit(x)
        return self.head(x.mean((2, 3)))


class TokenUnit(nn.Module):
    """A unit of tokens: one branch, a norm, written with functions or modules."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.gain, self.drop = nn.LayerNorm(width), nn.Parameter(torch.full((width,), 0.7)), nn.Dropout(0.1)
        self.gate = nn.Linear(width, width)
        self.kind = kind

    def attention(self, x: Tensor) -> Tensor:
        """A branch that reads x three times."""
        return torch.softmax(self.query(x) @ self.key(x).transpose(1, 2), -1) @ x

    def mlp(self, x: Tensor) -> Tensor:
        """A branch that reads x once."""
        return self.outer(F.gelu(self.inner(x)))

    def layer_norm(self, x: Tensor) -> Tensor:
        """The norm as a function."""
        return F.layer_norm(x, x.shape[-1:], self.norm.weight, self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The unit as its author wrote it."""
        match self.kind:
            case "post_norm":
                return self.norm(x + self.attention(x))
            case "post_norm_function":
                return self.layer_norm(self.drop(x + self.mlp(x)))
            case "minus":
                return torch.sub(x, self.mlp(self.norm(x)))
            case "alpha":
                return torch.add(input=self.mlp(x), other=x, alpha=0.5)
            case "parallel":
                n = self.norm(x)
                return x + self.attention(n) + self.mlp(n)
            case "addcmul":
                return torch.addcmul(x, self.mlp(x), self.gain)
            case "addmm":
                hidden = F.gelu(self.inner(x)).flatten(0, 1)
                return torch.addmm(x.flatten(0, 1), hidden, self.outer.weight.t()).view_as(x)
            case "lerp":
                return torch.lerp(x, self.mlp(x), torch.sigmoid(self.gate(x)))
            case "stack_mean":
                return torch.stack([F.relu(self.mlp(x)), self.norm(x)], 1).mean(1)
            case "interpolation":
                return x + self.gain * (self.mlp(x) - x)
            case "ignored":
                y = self.mlp(x)
                y.add_(x)
                return F.silu(y)
            case "seen by a view":
                y = self.mlp(x)
                seen = y.view(-1)
                y.add_(x)
                return F.silu(seen.view_as(x))
            case "gate":
                g = torch.sigmoid(self.gate(x))
                return torch.tanh(g * x + (1 - g) * self.mlp(x))
        raise AssertionError(self.kind)

    def edited(self, x: Tensor, e: Edit) -> Tensor:
        """The unit with an edit."""
        b, h = e.of_branch, lambda value: e.of_shortcut(value, x)
        skip = e.after == "skip"
        match self.kind:
            case "post_norm":
                if e.norm == "into_branch":
                    return h(x) + b(self.attention(self.norm(x)))
                y = h(x) + b(self.attention(x))
                return y if skip else self.norm(y)
            case "post_norm_function":
                y = h(x) + b(self.mlp(self.layer_norm(x) if e.norm == "into_branch" else x))
                y = y if e.dropout == "off" else self.drop(y)
                return y if skip or e.norm == "into_branch" else self.layer_norm(y)
            case "minus":
                return h(x) - b(self.mlp(self.norm(x)))
            case "alpha":
                return h(0.5 * x) + b(self.mlp(x))
            case "parallel":
                n = self.norm(x)
                return h(x) + b(self.attention(n)) + b(self.mlp(n))
            case "addcmul":
                return h(x) + b(self.mlp(x) * self.gain)
            case "addmm":
                return h(x) + b(F.gelu(self.inner(x)) @ self.outer.weight.t())
            case "lerp":
                g = torch.sigmoid(self.gate(x))
                return (
                    h((1 - g) * x) + b(g * self.mlp(x))
                    if e.branch_gradient is None
                    else (1 - g) * x + g * b(self.mlp(x))
                )
            case "stack_mean":
                return h(0.5 * self.norm(x)) + b(0.5 * F.relu(self.mlp(x)))
            case "interpolation":
                return (1 - self.gain) * x + self.gain * b(self.mlp(x))
            case "ignored" | "seen by a view":
                y = h(x) + b(self.mlp(x))
                return y if skip else F.silu(y)
            case "gate":
                g = torch.sigmoid(self.gate(x))
                y = h(g * x) + b((1 - g) * self.mlp(x))
                return y if skip else torch.tanh(y)
        raise AssertionError(self.kind)


class TokenNet(nn.Module):
    """(N,T,D) → (N,4): units of one kind between an embedding and a head."""

    def __init__(self, kind: str, edits: dict[int, Edit] | None = None, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.layers = nn.ModuleList(TokenUnit(width, kind) for _ in range(depth))
        self.head = nn.Linear(width, 4)
        self.edits = edits or {}

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = torch.tanh(self.embed(x))
        for k, layer in enumerate(self.layers):
            x = layer.edited(x, self.edits[k]) if k in self.edits else layer(x)
        return self.head(x.mean(1))


def with_forward(model: nn.Module, kind: type[nn.Module], forward: Callable[..., Any]) -> nn.Module:
    """A copy of a model in which every module of a class runs another forward."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if type(module) is kind:
            vars(module)["forward"] = forward.__get__(module)
    return twin


def train(model: nn.Module, batches: list[Any], call: Callable[[nn.Module, Any], Tensor]) -> list[dict[str, Tensor]]:
    """Train a few steps: of each the output and every parameter's gradient, at the end what the model holds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    record = []
    for step, batch in enumerate(batches):
        torch.manual_seed(step)
        optimizer.zero_grad()
        out = call(model, batch)
        ((out - 0.3).square().mean() + out.sin().mean()).backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        record.append({"output": out.detach().clone(), **gradients})
        optimizer.step()
    record.append({name: value.clone().double() for name, value in model.state_dict().items()})
    return record
