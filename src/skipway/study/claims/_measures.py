"""What several claims measure: Jacobians, what units pass on, digits learnt in a few steps.

Shapes: N batch, C channels, H and W image, D width, S entries of a tensor.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipway.data import open_data
from skipway.models import Net, create_model
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from skipway.models.stack import PlannedStack
    from skipway.models.unit import PlannedUnit

__all__ = [
    "EXACT",
    "GUESS",
    "Pass",
    "digits_curve",
    "gradient_ratios",
    "jacobian",
    "passes",
    "seeded",
    "smooth_branch",
    "train_on_digits",
]

# Of float64 arithmetic on tensors of some hundred entries: a hundred times its rounding.
EXACT: Final = 1e-12
GUESS: Final = math.log(10)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers by a seed; the generator is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def smooth_branch(width: int) -> nn.Sequential:
    """``W₂ tanh(W₁ x)`` in float64: (N,D) to (N,D)."""
    return nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)).double()


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``∂function/∂x``, every entry by every entry: (S,S)."""
    found: Tensor = torch.autograd.functional.jacobian(function, x)
    return found.reshape(-1, x.numel())


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What one unit read, what its branch gave, and what it wrote."""

    unit: PlannedUnit
    x: Tensor
    branch: Tensor
    out: Tensor

    @property
    def keeps_shape(self) -> bool:
        """Whether the stream leaves in the shape in which it came."""
        return not self.unit.plan.site.changes_shape


def passes(net: Net | PlannedStack, batch: Tensor) -> list[Pass]:
    """Run a net, in the mode it is in, and note every unit's tensors."""
    stack = net.stack if isinstance(net, Net) else net
    given: list[Tensor] = []
    noted: list[Pass] = []

    def of_branch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        given.append(output.detach().clone())

    def of_unit(unit: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x, out = inputs[0].detach().clone(), output.detach().clone()
        noted.append(Pass(unit=unit, x=x, branch=given[-1], out=out))  # type: ignore[arg-type]  # hooked on units alone

    handles = []
    for unit in stack.built_units():
        handles += [unit.branches[0].register_forward_hook(of_branch), unit.register_forward_hook(of_unit)]
    try:
        with torch.no_grad():
            net(batch)
    finally:
        for handle in handles:
            handle.remove()
    return noted


def gradient_ratios(net: Net | PlannedStack, batch: Tensor, labels: Tensor | None = None) -> list[float]:
    """‖∂L/∂x_l‖ / ‖∂L/∂x_L‖ for every unit l of the last stretch that keeps the shape; x_L leaves it.

    Args:
        net: in the mode to measure in.
        batch: what it is called with.
        labels: for the cross-entropy; without them the loss is a fixed random projection of the outputs.
    """
    streams: list[Tensor] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if inputs[0].shape != output.shape:
            streams.clear()
        elif not streams:
            streams.append(inputs[0])
        streams.append(output)

    stack = net.stack if isinstance(net, Net) else net
    handles = [unit.register_forward_hook(note) for unit in stack.built_units()]
    try:
        # Where nothing stands in front of the first unit, the batch is the stream.
        output = net(batch.detach().requires_grad_() if batch.is_floating_point() else batch)
        if labels is None:
            # No sum: behind a norm the entries of a token add up to a constant.
            weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=output.dtype)
            loss = (output * weights).sum()
        else:
            loss = F.cross_entropy(output, labels)
        norms = [float(g.norm()) for g in torch.autograd.grad(loss, streams)]
    finally:
        for handle in handles:
            handle.remove()
    return [norm / norms[-1] for norm in norms[:-1]]


def train_on_digits(
    net: nn.Module,
    *,
    steps: int,
    seed: int = 0,
    batch_size: int = 64,
    lr: float = 0.1,
    flat: bool = False,
    behind: Callable[[int], None] | None = None,
) -> list[float]:
    """Train by SGD with momentum 0.9 at a constant rate, without weight decay; a seed has one order of batches.

    Args:
        net: of ten classes; left in train mode.
        steps: of the optimiser.
        seed: of the order of the data.
        batch_size: N.
        lr: learning rate.
        flat: whether the net reads (N,D) rather than images.
        behind: is told behind each step how many are done.

    Returns:
        The loss of every step, in nats; it ends early where one is not finite.
    """
    data = open_data(DataSpec(name="digits"), device=torch.device("cpu"))
    batches = data.train(batch_size=batch_size, seed=seed)
    parameter = next(net.parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses: list[float] = []
    net.train()
    for step in range(steps):
        x, y = next(batches)
        x = x.to(parameter.dtype)
        loss = F.cross_entropy(net(x.flatten(1) if flat else x), y)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if behind is not None:
            behind(step + 1)
    return losses


@lru_cache(maxsize=64)
def digits_curve(model: str, seed: int, steps: int) -> tuple[float, ...]:
    """Losses of a net 8 channels wide on digits, batches of 32, SGD 0.1 from the first step; several claims read it.

    Args:
        model: name of a convolutional net.
        seed: of weights and batches.
        steps: of the optimiser.
    """
    with seeded(seed):
        net = create_model(model, width=8, in_channels=1)
        return tuple(train_on_digits(net, steps=steps, seed=seed, batch_size=32))
