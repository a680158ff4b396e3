"""Small nets for the gradient by path length, each with a twin whose branches hand back a share of their gradient.

Shapes: N samples, T tokens, D width, C channels, S height and width of an image.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from oracle.path_polynomial import hand_back

__all__ = ["CONV", "TOKENS", "L", "batch_for", "make"]

N, T, D, C, S, L = 3, 5, 8, 6, 8, 4


class Net(nn.Module):
    """A stem, L units, a head. `share` is what each branch hands back; None runs the net as a user would write it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.share: float | None = None
        self.stem, self.head = nn.Linear(D, D), nn.Linear(D, 3)
        self.branches = nn.ModuleList(self.branch() for _ in range(L))
        self.stream: list[Tensor] = []

    def branch(self) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def back(self, branch: Tensor) -> Tensor:
        return branch if self.share is None else hand_back(branch, self.share)

    def enter(self, x: Tensor) -> Tensor:
        """The stream where the first unit reads it; the twin can be asked for the gradient there."""
        if self.share is not None:
            x = x.detach().requires_grad_()
            self.stream[:] = [x]
            return x.clone()
        return x

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        return x + self.back(branch(x))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(self.stem(x))
        for branch in self.branches:
            x = self.join(x, branch)
        return self.head(x)


class AddedInPlace(Net):
    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        y = self.back(branch(x)).clone()
        y += x
        return y


class AddedIntoStream(Net):
    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        x += self.back(branch(x.clone()))
        return x


class AddedIntoView(Net):
    """The sum is written through a view, and only the whole tensor is read afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 3))

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        y = self.back(branch(x)).clone()
        y.view(-1).add_(x.reshape(-1))
        return y


class StreamIsView(Net):
    """x is a view of the whole, written to in place: its own node in the graph is passed no more."""

    def enter(self, x: Tensor) -> Tensor:
        return super().enter(x).mT.contiguous().mT

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        x.add_(self.back(branch(x.clone())))
        return x


class Parallel(Net):
    def branch(self) -> nn.Module:
        return nn.ModuleList([Net.branch(self), Net.branch(self)])

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        return x + self.back(branch[0](x)) + self.back(branch[1](x))


class Shared(Net):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([self.branches[0]] * L)


class PostNorm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(L))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(self.stem(x))
        for branch, norm in zip(self.branches, self.norms, strict=True):
            x = norm(self.join(x, branch))
        return self.head(x)


class Fused(Net):
    """``addmm``: the sum and the last matrix product are one function."""

    def branch(self) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU())

    def __init__(self) -> None:
        super().__init__()
        self.ends = nn.ParameterList(torch.randn(D, D) / D for _ in range(L))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(self.stem(x)).reshape(-1, D)
        for branch, end in zip(self.branches, self.ends, strict=True):
            inside = branch(x)
            x = torch.addmm(x, inside, end) if self.share is None else x + self.back(inside @ end)
        return self.head(x)


class Interpolated(Net):
    """``lerp`` by a gate: highway. The twin writes its two products out."""

    def branch(self) -> nn.Module:
        return nn.ModuleList([Net.branch(self), nn.Linear(D, D)])

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        inside, gate = branch[0](x), torch.sigmoid(branch[1](x))
        if self.share is None:
            return torch.lerp(x, inside, gate)
        return x * (1 - gate) + self.back(inside * gate)


class Stacked(Net):
    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        return torch.stack([x, self.back(branch(x))]).sum(0)


class Doubled(Net):
    """``add`` with a factor, and a subtraction."""

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        return torch.add(x, self.back(branch(x)), alpha=0.5) - self.back(branch(0.5 * x))


class Dropped(Net):
    def branch(self) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU(), nn.Dropout(0.3), nn.Linear(D, D))


class Recomputed(Dropped):
    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        return checkpoint(lambda z: z + self.back(branch(z)), x, use_reentrant=False)


class RecomputedReentrant(Net):
    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return checkpoint(lambda z: z + branch(z), x, use_reentrant=True)


class Nested(Net):
    """A unit inside each branch: paths are counted by the branches of the outer ones."""

    def branch(self) -> nn.Module:
        return nn.ModuleList([Net.branch(self), nn.Linear(D, D)])

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        inner = branch[1](x)
        return x + self.back(F.gelu(inner + branch[0](inner)) @ branch[1].weight)


class Distances(Net):
    """``torch.cdist``, whose backward pass is wrong under vmap and says nothing."""

    def branch(self) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D))

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        inside = branch(x)
        return x + self.back(torch.cdist(inside, inside + 1.0) @ inside)


class _Items(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * (2.0 if gradient.abs().sum().item() >= 0 else 0.0)


class Itemised(Net):
    """A custom backward that reads a number out of a tensor, which vmap refuses."""

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        return x + self.back(_Items.apply(branch(x)))


class Conv(Net):
    """Convolutions with BatchNorm, one transition with a projection, ReLU after the add."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, C, 3, 1, 1), nn.Linear(2 * C, 3)
        widths = [(C, C), (C, 2 * C), (2 * C, 2 * C), (2 * C, 2 * C)]
        self.branches = nn.ModuleList(self.weights(i, o) for i, o in widths)
        self.shortcut = nn.Conv2d(C, 2 * C, 1, 2)

    @staticmethod
    def weights(i: int, o: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(i, o, 3, 1 if i == o else 2, 1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, 1, 1), nn.BatchNorm2d(o),
        )  # fmt: skip

    def join(self, x: Tensor, branch: nn.Module) -> Tensor:
        shortcut = x if branch[0].stride == (1, 1) else self.shortcut(x)
        y = self.back(branch(x))
        y = y.clone() if self.share is not None else y
        y += shortcut
        return F.relu(y, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(self.stem(x))
        for branch in self.branches:
            x = self.join(x, branch)
        return self.head(x.mean((2, 3)))


class Detour(Net):
    """One tower runs beside the other; its units are not behind the first one's x."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(D, D)
        self.beside = nn.ModuleList(Net.branch(self) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        y = self.other(x)
        for branch in self.beside:
            y = y + branch(y)
        return out + self.head(y)


TOKENS = {
    net.__name__: net
    for net in (
        Net, AddedInPlace, AddedIntoStream, AddedIntoView, StreamIsView, Parallel, Shared, PostNorm, Fused,
        Interpolated, Stacked, Doubled, Dropped, Recomputed, Nested, Itemised, Distances, RecomputedReentrant, Detour,
    )
}  # fmt: skip
CONV = {"Conv": Conv}


def make(name: str) -> Net:
    """A net in double precision, in train mode."""
    return {**TOKENS, **CONV}[name]().double()


def batch_for(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (N, 3, S, S) if name in CONV else (N, T, D)
    return torch.randn(shape, dtype=torch.float64, generator=generator)
