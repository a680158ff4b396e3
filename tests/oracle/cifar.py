"""CIFAR residual nets of basic units written by hand, one formula a design; slow, obvious, for float64.

Shapes: N batch, C channels, H and W image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["FORMULAS", "STAGES", "Place", "cifar_net"]


@dataclass(frozen=True)
class Place:
    """The parameters of one unit by name, and where it stands."""

    weights: dict[str, Tensor]
    stride: int
    first: bool
    training: bool

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name]

    def conv(self, x: Tensor, k: int, stride: int = 1) -> Tensor:
        """The branch's k-th convolution, by unfolding."""
        return convolve(x, self[f"branches.0.conv{k}.weight"], stride)

    def bn(self, x: Tensor, name: str) -> Tensor:
        """Batch norm with batch statistics."""
        return normalise(x, self[f"{name}.weight"], self[f"{name}.bias"])

    def skip(self, x: Tensor) -> Tensor:
        """Option A."""
        if self.stride == 1:
            return x
        n, c, h, w = x.shape
        out = x.new_zeros(n, 2 * c, (h + 1) // 2, (w + 1) // 2)
        out[:, :c] = x[:, :, ::2, ::2]
        return out

    def gate(self, x: Tensor) -> Tensor:
        """σ of a convolution with bias."""
        y = convolve(x, self["join.gate.weight.weight"], self.stride) + self["join.gate.weight.bias"].view(1, -1, 1, 1)
        return 1 / (1 + torch.exp(-y))

    def branch(self, x: Tensor) -> Tensor:
        """conv-BN-ReLU-conv."""
        y = self.bn(self.conv(x, 1, self.stride), "branches.0.norm1").clamp(min=0)
        return self.conv(y, 2)

    def normed(self, x: Tensor) -> Tensor:
        """conv-BN-ReLU-conv-BN."""
        return self.bn(self.branch(x), "branches.0.norm2")


def convolve(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolution with half-kernel padding as one matrix product."""
    out, _, k, _ = weight.shape
    columns = F.unfold(x, k, padding=k // 2, stride=stride)
    height = (x.shape[2] + 2 * (k // 2) - k) // stride + 1
    return (weight.reshape(out, -1) @ columns).reshape(len(x), out, height, -1)


def normalise(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """Batch norm of a training batch."""
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * gain.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


Formula = Callable[[Tensor, Place], Tensor]


def preact_branch(x: Tensor, u: Place) -> Tensor:
    """BN-ReLU-conv-BN-ReLU-conv; the first unit's leading pair is the stem's."""
    a = x if u.first else u.bn(x, "branches.0.norm1").clamp(min=0)
    second = "branches.0.norm1" if u.first else "branches.0.norm2"
    return u.conv(u.bn(u.conv(a, 1, u.stride), second).clamp(min=0), 2)


def preact(x: Tensor, u: Place) -> Tensor:
    """h(x) + F(x)."""
    return u.skip(x) + preact_branch(x, u)


def relu_only_preact(x: Tensor, u: Place) -> Tensor:
    """ReLU-conv-BN-ReLU-conv-BN."""
    return u.skip(x) + u.normed(x if u.first else x.clamp(min=0))


def one_layer(x: Tensor, u: Place) -> Tensor:
    """ReLU( x + BN·Conv(x) )."""
    return (u.skip(x) + u.bn(u.conv(x, 1, u.stride), "branches.0.norm1")).clamp(min=0)


def one_layer_preact(x: Tensor, u: Place) -> Tensor:
    """x + Conv·ReLU·BN(x)."""
    a = x if u.first else u.bn(x, "branches.0.norm1").clamp(min=0)
    return u.skip(x) + u.conv(a, 1, u.stride)


def exclusive(x: Tensor, u: Place) -> Tensor:
    """ReLU( (1−g)⊙x + g⊙F(x) )."""
    g = u.gate(x)
    return ((1 - g) * u.skip(x) + g * u.normed(x)).clamp(min=0)


def highway(x: Tensor, u: Place) -> Tensor:
    """T⊙H + (1−T)⊙x, H = ReLU(F(x))."""
    t = u.gate(x)
    return t * u.normed(x).clamp(min=0) + (1 - t) * u.skip(x)


def option_b(x: Tensor, u: Place) -> Tensor:
    """A projection with BN where shapes change."""
    h = x
    if u.stride == 2:
        h = u.bn(convolve(x, u["join.shortcut.proj1.weight"], 2), "join.shortcut.norm1")
    return (h + u.normed(x)).clamp(min=0)


def option_c(x: Tensor, u: Place) -> Tensor:
    """A projection with BN on every unit."""
    h = u.bn(convolve(x, u["join.shortcut.proj1.weight"], u.stride), "join.shortcut.norm1")
    return (h + u.normed(x)).clamp(min=0)


def preact_b(x: Tensor, u: Place) -> Tensor:
    """A projecting unit shares its activation and has no norm behind the projection."""
    if u.stride == 1:
        return preact(x, u)
    a = u.bn(x, "join.shared.norm1").clamp(min=0)
    h = convolve(a, u["join.shortcut.weight"], 2)
    return h + u.conv(u.bn(u.conv(a, 1, 2), "branches.0.norm1").clamp(min=0), 2)


def dense(x: Tensor, u: Place) -> Tensor:
    """[x, F(x)], behind a halving transition where a stage begins."""
    if u.stride == 2:
        a = u.bn(x, "transition.norm1").clamp(min=0)
        x = F.avg_pool2d(convolve(a, u["transition.conv1.weight"], 1), 2)
    a = u.conv(u.bn(x, "branches.0.norm1").clamp(min=0), 1)
    return torch.cat((x, u.conv(u.bn(a, "branches.0.norm2").clamp(min=0), 2)), 1)


def dropout(x: Tensor, u: Place, *, inverted: bool) -> Tensor:
    """D(h) + F in eval mode is not asked for: the mask comes from PyTorch's generator in order of execution."""
    h = u.skip(x)
    mask = torch.empty_like(h).bernoulli_(0.5)
    return (h * mask * (2 if inverted else 1) + u.normed(x)).clamp(min=0)


def reversible_stage(x: Tensor, units: list[Place]) -> Tensor:
    """Blocks of two units on two copies of x, closed as their mean; one that is over comes before them."""
    if len(units) % 2:
        x = preact(x, units[0])
    y1 = y2 = x
    for f, g in zip(units[len(units) % 2 :: 2], units[len(units) % 2 + 1 :: 2], strict=True):
        y1 = y1 + preact_branch(y2, f)
        y2 = y2 + preact_branch(y1, g)
    return (y1 + y2) / 2


def momentum_stage(x: Tensor, units: list[Place], gamma: float) -> Tensor:
    """v' = γv + (1−γ)F(x), x' = x + v', from v = 0."""
    v = torch.zeros_like(x)
    for u in units:
        v = gamma * v + (1 - gamma) * preact_branch(x, u)
        x = x + v
    return x


# What units of one shape do together; the unit that changes the shape is one of `FORMULAS`.
STAGES: Final[dict[str, tuple[Callable[[Tensor, list[Place]], Tensor], Formula]]] = {
    "revnet": (reversible_stage, preact),
    "revnet(shortcut=B)": (reversible_stage, preact_b),
    "momentum": (lambda x, units: momentum_stage(x, units, 0.9), preact),
    "momentum(gamma=0.3)": (lambda x, units: momentum_stage(x, units, 0.3), preact),
}
FORMULAS: Final[dict[str, Formula]] = {
    "plain": lambda x, u: u.normed(x).clamp(min=0),
    "post_act": lambda x, u: (u.skip(x) + u.normed(x)).clamp(min=0),
    "post_act(shortcut=B)": option_b,
    "post_act(shortcut=C)": option_c,
    "scaled": lambda x, u: (0.5 * u.skip(x) + 0.5 * u.normed(x)).clamp(min=0),
    "scaled(lam=0.5,mu=1)": lambda x, u: (0.5 * u.skip(x) + u.normed(x)).clamp(min=0),
    "scaled(lam=1,mu=0.17)": lambda x, u: (u.skip(x) + 0.17 * u.normed(x)).clamp(min=0),
    "exclusive_gate": exclusive,
    "exclusive_gate(bias=0)": exclusive,
    "shortcut_gate": lambda x, u: ((1 - u.gate(x)) * u.skip(x) + u.normed(x)).clamp(min=0),
    "conv_shortcut": lambda x, u: (convolve(x, u["join.shortcut.weight"], u.stride) + u.normed(x)).clamp(min=0),
    "dropout_shortcut": lambda x, u: dropout(x, u, inverted=False),
    "dropout_shortcut(inverted=true)": lambda x, u: dropout(x, u, inverted=True),
    "bn_after_add": lambda x, u: u.bn(u.skip(x) + u.branch(x), "join.after.norm1").clamp(min=0),
    "relu_before_add": lambda x, u: u.skip(x) + u.normed(x).clamp(min=0),
    "relu_only_preact": relu_only_preact,
    "preact": preact,
    "preact(shortcut=B)": preact_b,
    "one_layer_skip": one_layer,
    "one_layer_skip(preact=true)": one_layer_preact,
    "highway": highway,
    "highway(bias=-1)": highway,
    "dense": dense,
    "multiply": lambda x, u: (u.skip(x) * (1 + u.normed(x))).clamp(min=0),
    "multiply(plus_one=false)": lambda x, u: (u.skip(x) * u.normed(x)).clamp(min=0),
    "mean": lambda x, u: ((u.skip(x) + u.normed(x)) / 2).clamp(min=0),
    "mean(keep=variance)": lambda x, u: ((u.skip(x) + u.normed(x)) / 2**0.5).clamp(min=0),
}
_CLOSED: Final = {
    "preact": "norm", "preact(shortcut=B)": "norm", "one_layer_skip(preact=true)": "norm", "dense": "norm",
    "relu_only_preact": "relu",
}  # fmt: skip


def staged(design: str, x: Tensor, units: list[Place]) -> Tensor:
    """Stage by stage."""
    together, changing = STAGES[design]
    starts = [i for i, u in enumerate(units) if u.stride == 2]
    for start, stop in zip([0, *starts], [*starts, len(units)], strict=True):
        x = changing(x, units[start]) if start else x
        x = together(x, units[start + (start > 0) : stop])
    return x


def cifar_net(design: str, state: dict[str, Tensor], strides: list[int], x: Tensor) -> Tensor:
    """The whole net in training mode: stem, units, last activation, average, classifier.

    Args:
        design: key of `FORMULAS` or `STAGES`.
        state: parameters by their names in our model.
        strides: of each unit.
        x: (N,3,H,W).
    """
    y = normalise(convolve(x, state["stem.conv.weight"], 1), state["stem.norm.weight"], state["stem.norm.bias"])
    y = y.clamp(min=0)
    places: list[Place] = []
    for i, stride in enumerate(strides):
        prefix = f"stack.units.{i}."
        weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        places.append(Place(weights, stride, first=i == 0, training=True))
    if design in STAGES:
        y = staged(design, y, places)
    else:
        for place in places:
            y = FORMULAS[design](y, place)
    if _CLOSED.get(design) == "norm" or design in STAGES:
        y = normalise(y, state["stack.exit.norm1.weight"], state["stack.exit.norm1.bias"])
    if design in _CLOSED or design in STAGES:
        y = y.clamp(min=0)
    return y.mean((2, 3)) @ state["head.fc.weight"].T + state["head.fc.bias"]
