"""Programs whose add reads or writes the wrong tensor: rewritten before, written over, or added to itself."""

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
    prenorm,
)

# --- shortcut-overwritten: the branch rewrites x before the shortcut reads it ---


class LeadingReLU(nn.Module):
    def __init__(self, inplace: bool, width: int = 16) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.ReLU(inplace=inplace), conv(width, bias=True), nn.ReLU(inplace=True), nn.Conv2d(width, width, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        y += x
        return y


class CentredInPlace(nn.Module):
    """A norm written by hand, whose first step writes into x."""

    def __init__(self, inplace: bool, width: int = 32) -> None:
        super().__init__()
        self.inplace = inplace
        self.inner = mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True).detach()
        h = x.sub_(mean) if self.inplace else x - mean
        h = h / (h.std(-1, keepdim=True) + 1e-5)
        return x + self.inner(h)


class ScaledView(nn.Module):
    """The queries' scale is written through a view of x."""

    def __init__(self, inplace: bool, width: int = 32) -> None:
        super().__init__()
        self.inplace = inplace
        self.value = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q = x.view(n, t, 4, d // 4)
        q = q.mul_((d // 4) ** -0.5) if self.inplace else q * (d // 4) ** -0.5
        scores = torch.einsum("nthc,nshc->nhts", q, q).softmax(-1)
        v = self.value(q.reshape(n, t, d)).view(n, t, 4, d // 4)
        return torch.einsum("nhts,nshc->nthc", scores, v).reshape(n, t, d) + x


class HardSwish(nn.Module):
    def __init__(self, inplace: bool, width: int = 16) -> None:
        super().__init__()
        self.inplace = inplace
        self.weight = nn.Parameter(0.1 * torch.randn(width, width, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.leaky_relu(x, 0.1, inplace=self.inplace)
        return torch.add(F.conv2d(h, self.weight, padding=1), x)


pair("shortcut-overwritten", "leading_relu", lambda f: ConvNet([LeadingReLU(f) for _ in range(3)]), images(),
     severity="error", where="units", reason="ReLU(inplace=True) first, then y += x")  # fmt: skip
pair("shortcut-overwritten", "one_of_five", lambda f: ConvNet([LeadingReLU(f and k == 3) for k in range(5)]), images(),
     severity="error", where="units.3", reason="only one unit of five has it")  # fmt: skip
pair("shortcut-overwritten", "token_centred", lambda f: TokenNet([CentredInPlace(f) for _ in range(3)],
     norm=nn.Identity()), ids(),
     severity="error", where="layers", reason="x.sub_(mean) of a hand-written norm")  # fmt: skip
pair("shortcut-overwritten", "token_view", lambda f: TokenNet([ScaledView(f) for _ in range(2)]), ids(),
     severity="error", where="layers", reason="mul_ on a view of x")  # fmt: skip
pair("shortcut-overwritten", "functional", lambda f: ConvNet([HardSwish(f) for _ in range(3)]), images(),
     severity="error", where="units", mode="eval", reason="F.leaky_relu(inplace=True), in eval mode")  # fmt: skip

# The result of the in-place call is dropped: it is the name that the code goes on with.


class StatementReLU(nn.Module):
    """A branch whose first line is a statement that writes into what the block still holds."""

    def __init__(self, inplace: bool, width: int = 16) -> None:
        super().__init__()
        self.inplace = inplace
        self.conv = conv(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inplace:
            F.relu_(x)
        else:
            x = F.relu(x)
        return self.conv(x)


class SecondName(nn.Module):
    """One forward that holds x under two names and writes by one of them."""

    def __init__(self, inplace: bool, width: int = 16) -> None:
        super().__init__()
        self.inplace = inplace
        self.conv = conv(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x
        if self.inplace:
            x.clamp_(min=0)
        else:
            x = x.clamp(min=0)
        return self.conv(x) + shortcut


def _centre_(x: torch.Tensor) -> None:
    x.sub_(x.mean(-1, keepdim=True))


class CentredByHelper(nn.Module):
    """A function without a result centres what it is given; it is given x under a second name."""

    def __init__(self, inplace: bool, width: int = 32) -> None:
        super().__init__()
        self.inplace = inplace
        self.inner = mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x if self.inplace else x.clone()
        _centre_(h)
        return x + self.inner(h)


class ScaledStatement(nn.Module):
    """A view of x is scaled by a statement."""

    def __init__(self, inplace: bool, width: int = 32) -> None:
        super().__init__()
        self.inplace = inplace
        self.query, self.out = nn.Linear(width // 4, width // 4), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q = x.view(n, t, 4, d // 4) if self.inplace else x.clone().view(n, t, 4, d // 4)
        q.mul_((d // 4) ** -0.5)
        return x + self.out(self.query(q).reshape(n, t, d))


pair("shortcut-overwritten", "statement", lambda f: ConvNet([Residual(StatementReLU(f)) for _ in range(3)]), images(),
     severity="error", where="units", reason="F.relu_(x) as a statement in the branch's own forward")  # fmt: skip
pair("shortcut-overwritten", "second_name", lambda f: ConvNet([SecondName(f and k == 1) for k in range(3)]), images(),
     severity="error", where="units.1", reason="shortcut = x, then x.clamp_(min=0) as a statement")  # fmt: skip
pair("shortcut-overwritten", "helper", lambda f: TokenNet([CentredByHelper(f) for _ in range(3)], norm=nn.Identity()),
     ids(), severity="error", where="layers", reason="h = x, and a function that writes into h")  # fmt: skip
pair("shortcut-overwritten", "view_statement", lambda f: TokenNet([ScaledStatement(f) for _ in range(2)]), ids(),
     severity="error", where="layers", reason="q = x.view(…); q.mul_(s) as a statement")  # fmt: skip

# Only a part of x is written.


class ShiftedInPlace(nn.Module):
    """A channel shift, in place: the first channels move by one column, the next ones are dropped."""

    def __init__(self, inplace: bool, width: int = 16) -> None:
        super().__init__()
        self.inplace = inplace
        self.conv = conv(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x if self.inplace else x.clone()
        shifted[:, :4, :, 1:] = x[:, :4, :, :-1].clone()
        shifted[:, 4:6] = 0
        return self.conv(shifted)


class RotatedInPlace(nn.Module):
    """Half of every token is rotated in the tensor that attention was given."""

    def __init__(self, inplace: bool, width: int = 32) -> None:
        super().__init__()
        self.inplace, self.width = inplace, width
        self.attention = Attention(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.inplace:
            x = x.clone()
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        half = self.width // 2
        a, b = x[..., : half // 2].clone(), x[..., half // 2 : half].clone()
        x[..., : half // 2] = a * angle.cos() - b * angle.sin()
        x[..., half // 2 : half] = a * angle.sin() + b * angle.cos()
        return self.attention(x)


class ScaledColumn(nn.Module):
    """One forward: the first column of the branch's input is doubled through a view, the last four are augmented."""

    def __init__(self, inplace: bool, width: int = 32) -> None:
        super().__init__()
        self.inplace = inplace
        self.inner = mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x if self.inplace else x.clone()
        h[..., 0].mul_(2)
        h[..., -4:] += 0.5
        return x + self.inner(h)


pair("shortcut-overwritten", "shift", lambda f: ConvNet([Residual(ShiftedInPlace(f)) for _ in range(3)]), images(),
     severity="error", where="units", reason="x[:, :4] = … in the branch")  # fmt: skip
pair("shortcut-overwritten", "rotated", lambda f: TokenNet([Residual(RotatedInPlace(f)) for _ in range(3)]), ids(),
     severity="error", where="layers", reason="positions are written into a part of x")  # fmt: skip
pair("shortcut-overwritten", "column", lambda f: TokenNet([ScaledColumn(f) for _ in range(3)]), ids(),
     severity="error", where="layers", reason="h = x; h[..., 0].mul_(2); h[..., -4:] += …")  # fmt: skip


class InPlaceAfterNorm(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(inplace=True), conv(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x)


class InPlaceAfterAdd(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.branch = conv_bn(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        y += x
        return y.relu_()


class Cloned(LeadingReLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branch(x.clone()) + x


healthy("shortcut-overwritten", "after_norm", lambda: ConvNet([InPlaceAfterNorm() for _ in range(3)], end=bn_relu()),
        images(), reason="the in-place ReLU writes into the norm's output, not into x")  # fmt: skip
healthy("shortcut-overwritten", "after_add", lambda: ConvNet([InPlaceAfterAdd() for _ in range(3)]), images(),
        reason="in place on the sum: nobody reads it before")  # fmt: skip
healthy("shortcut-overwritten", "cloned", lambda: ConvNet([Cloned(True) for _ in range(3)]), images(),
        reason="the branch gets a copy to write into")  # fmt: skip


class Statements(nn.Module):
    """Every line is an in-place statement, and there is one name: x.add_(F(x)) is the join itself."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.LayerNorm(width), mlp(width)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x
        out.add_(self.first(out.clone()))
        out.mul_(0.9)
        out.add_(self.second(out.clone()))
        return out


class Masked(nn.Module):
    """Padding is zeroed in the stream before branch and shortcut read it, by the only name that it has."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.branch = conv_bn(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[..., -1] = 0
        x[:, :2].mul_(0.5)
        F.relu_(x)
        return x + self.branch(x)


class WrittenFresh(nn.Module):
    """Positions are written into a tensor of the branch's own, rows into a cache."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.position = nn.Parameter(0.1 * torch.randn(64, width))
        self.attention, self.norm = Attention(width), nn.LayerNorm(width)
        self.register_buffer("cache", torch.zeros(2, 64, width), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.empty_like(x)
        h[..., :16] = x[..., :16]
        h[..., 16:] = x[..., 16:] + self.position[: x.shape[1], 16:]
        y = self.norm(x)
        y[:, :1] += self.position[:1]
        cache = self.cache
        cache[:, : x.shape[1]] = y
        return x + self.attention(h + cache[:, : x.shape[1]])


healthy("shortcut-overwritten", "statements", lambda: TokenNet([Statements() for _ in range(3)]), ids(),
        reason="x.add_(F(x)) as a statement is the join, whatever names its tensor has")  # fmt: skip
healthy("shortcut-overwritten", "masked", lambda: ConvNet([Masked() for _ in range(3)]), images(),
        reason="written before branch and shortcut, which read it by one name")  # fmt: skip
healthy("shortcut-overwritten", "fresh", lambda: TokenNet([WrittenFresh() for _ in range(3)]), ids(),
        reason="partial writes into a fresh tensor, a norm's output and a cache")  # fmt: skip

# --- inplace-add: destroys what backward needs ---


class AddInto(nn.Module):
    """x += F(x); F's first layer has saved x."""

    def __init__(self, branch: nn.Module, spelling: str) -> None:
        super().__init__()
        self.branch, self.spelling = branch, spelling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.spelling == "+=":
            x += self.branch(x)
        elif self.spelling == "add_":
            x.add_(self.branch(x))
        elif self.spelling == "part":
            x[..., :8] += self.branch(x)[..., :8]
        elif self.spelling == "healthy part":
            x = torch.cat([x[..., :8] + self.branch(x)[..., :8], x[..., 8:]], dim=-1)
        else:
            x = x + self.branch(x)
        return x


class AddIntoBranch(nn.Module):
    """y += x, where y's own backward needs y."""

    def __init__(self, inplace: bool, width: int = 16) -> None:
        super().__init__()
        self.inplace = inplace
        self.conv = conv(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.conv(x))
        if self.inplace:
            y += x
            return y
        return y + x


_BACKWARD = {"raises": "backward"}
pair("inplace-add", "conv", lambda f: ConvNet([AddInto(conv(16), "+=" if f else "") for _ in range(3)]), images(),
     severity="error", where="units", options=_BACKWARD, reason="x += conv(x)")  # fmt: skip
pair("inplace-add", "token", lambda f: TokenNet([*prenorm(), AddInto(nn.Sequential(nn.LayerNorm(32), mlp()),
     "add_" if f else "")]), ids(), severity="error", where="layers.2", options=_BACKWARD,
     reason="x.add_(mlp(norm(x))) as a statement, in the last of three units")  # fmt: skip
pair("inplace-add", "part", lambda f: TokenNet([AddInto(mlp(), "part" if f else "healthy part") for _ in range(2)]),
     ids(), severity="error", where="layers", options=_BACKWARD, reason="written to a slice of x")  # fmt: skip
pair("inplace-add", "saved_output", lambda f: ConvNet([AddIntoBranch(f) for _ in range(2)]), images(),
     severity="error", where="units", options=_BACKWARD, reason="tanh saved the y that y += x rewrites")  # fmt: skip


class AddIntoCopy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y += self.branch(x)
        return y


healthy("inplace-add", "branch_output", lambda: ConvNet([InPlaceAfterAdd() for _ in range(3)]), images(),
        reason="y += x after a BatchNorm, which did not save its output")  # fmt: skip
healthy("inplace-add", "copy", lambda: TokenNet([AddIntoCopy() for _ in range(3)]), ids(),
        reason="in place on a copy of x")  # fmt: skip

# --- self-add: both operands are one tensor ---


class SelfAdd(nn.Module):
    def __init__(self, branch: nn.Module, spelling: str) -> None:
        super().__init__()
        self.branch, self.spelling = branch, spelling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.branch(x)
        if self.spelling == "x + x":
            return x + x
        if self.spelling == "h + h":
            x = h
            return x + h
        if self.spelling == "view":
            return torch.add(x, x.view(x.shape).contiguous())
        if self.spelling == "in place":
            h += h
            return h
        return x + h


pair("self-add", "conv", lambda f: ConvNet([SelfAdd(preact(), "x + x" if f else "") for _ in range(5)], end=bn_relu()),
     images(), severity="error", where="units", reason="the branch is computed and forgotten: x + x")  # fmt: skip
pair("self-add", "token_renamed", lambda f: TokenNet([SelfAdd(nn.Sequential(nn.LayerNorm(32), Attention()),
     "h + h" if f else "") for _ in range(5)]), ids(), severity="error", where="layers",
     reason="x is overwritten by the branch's output before the add")  # fmt: skip
pair("self-add", "view", lambda f: TokenNet([*prenorm(), SelfAdd(mlp(), "view" if f else ""), *prenorm()]), ids(),
     severity="error", where="layers.2", reason="one unit of five, the same tensor through a view")  # fmt: skip
pair("self-add", "in_place", lambda f: ConvNet([SelfAdd(preact(), "in place" if f else "") for _ in range(4)],
     end=bn_relu()), images(), severity="error", where="units", reason="h += h where h += x was meant")  # fmt: skip


class Symmetric(nn.Module):
    """Token mixing by a symmetric matrix: a + aᵀ adds a tensor to its own transpose."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.key, self.value = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        a = torch.einsum("ntd,nsd->nts", self.key(h), h) / 32
        return x + (a + a.transpose(1, 2)).softmax(-1) @ self.value(h)


healthy("self-add", "symmetrised", lambda: TokenNet([Symmetric() for _ in range(4)]), ids(),
        reason="scores plus their own transpose")  # fmt: skip
