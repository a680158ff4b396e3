"""Nets by other people, as they are named on the command line."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def plain(outputs: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))


def five() -> nn.Module:
    return plain(5)


def twelve() -> nn.Module:
    return plain(12)


def map_of_logits() -> nn.Module:
    return nn.Conv2d(1, 10, 3, padding=1)


def wants_32_pixels() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 10))


def nothing_to_train() -> nn.Module:
    return plain().requires_grad_(False)


def state_of_words() -> nn.Module:
    class Words(nn.Sequential):
        def get_extra_state(self) -> dict[str, str]:
            return {"trained": "no"}

        def set_extra_state(self, state: dict[str, str]) -> None:
            pass

    return Words(*plain())


def without_values() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 10, device="meta"))


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))


def needs_two_samples() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))


def cuts_the_gradient() -> nn.Module:
    class Cut(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    return Cut(*plain())


def complex_gain() -> nn.Module:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.gain = plain(), nn.Parameter(torch.ones(10, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (self.inner(x) * self.gain).abs()

    return Gain()


def text_of_logits() -> nn.Module:
    class Words(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "seven"

    return Words()


class Breaks(nn.Module):
    """Divides by zero in its `inner` module, from the k-th training batch on."""

    class Divide(nn.Module):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.register_buffer("left", torch.tensor(float(at)))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.left -= 1
            return x / (self.left > -1)

    def __init__(self, at: int = 4) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(64, 16), self.Divide(at), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.inner(self.first(x.flatten(1))))
        return out
