"""Small nets and a loop for the tests of the monitor."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skipway.diagnostics.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable

N, T, D, L = 4, 5, 8, 6


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Block(nn.Module):
    def __init__(self, checkpointed: str) -> None:
        super().__init__()
        self.branch, self.checkpointed = Branch(), checkpointed

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.branch(x)
        return x + 0.5 * self.branch(x)  # the same module twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointed:
            out: torch.Tensor = checkpoint(self.inside, x, use_reentrant=self.checkpointed == "reentrant")
            return out
        return self.inside(x)


class Tokens(nn.Module):
    """L blocks of two units, each of which shares its branch."""

    def __init__(self, checkpointed: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(D, D)
        self.blocks = nn.ModuleList(Block(checkpointed) for _ in range(L))
        self.head = nn.Linear(D, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Images(nn.Module):
    """Post-activation with batch norm, written in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(L))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(L))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = norm(conv(x))
            y += x
            x = F.relu_(y)
        return self.head(x.mean((2, 3)))


def tokens(seed: int = 0, n: int = N, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, T, D, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def images(seed: int = 0, n: int = N) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with classes in turn."""
    flat = output.float().reshape(-1, output.shape[-1])
    return F.cross_entropy(flat, torch.arange(len(flat)) % output.shape[-1])


def train(
    model: nn.Module,
    batch: Callable[[int], torch.Tensor],
    steps: int = 20,
    *,
    monitored: bool = True,
    call: Callable[..., Any] | None = None,
    **options: Any,
) -> Monitor | None:
    """A loop; the random numbers of all steps follow from its seed."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    monitor = Monitor(model, optimizer=optimizer, **options) if monitored else None
    run = call or model
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(run(batch(step))).backward()
        optimizer.step()
        if monitor is not None:
            monitor.step()
    if monitor is not None:
        monitor.close()
    return monitor


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(model.state_dict())


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
