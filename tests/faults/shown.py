"""Plain measurements that show a fault: with PyTorch alone, nothing of skipway's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from faults.verdict import autocast, seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faults.case import FaultCase


def made(case: FaultCase) -> nn.Module:
    """The model of a case in its mode."""
    return case.build().train(case.mode == "train")


def called(case: FaultCase, model: nn.Module, seed: int = 0, batch: Any = None) -> torch.Tensor:
    """The model's output on its batch."""
    batch = case.batch() if batch is None else batch
    with seeded(seed), autocast(case):
        output = (
            model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, tuple) else model(batch)
        )
    assert isinstance(output, torch.Tensor)
    return output


def backward(output: torch.Tensor) -> None:
    """A projection of the output on fixed noise, backward."""
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    (output.double() * noise).sum().backward()


def stream_units(model: nn.Module) -> list[nn.Module]:
    """The units of the nets that the programs share."""
    found = getattr(model, "units", None)
    found = getattr(model, "layers", None) if found is None else found
    if found is None and hasattr(model, "encoder"):
        found = model.encoder.layers
    assert found is not None, "no list of units"
    return list(found)


def through(case: FaultCase) -> list[tuple[nn.Module, torch.Tensor, torch.Tensor]]:
    """Each unit with what goes in and what comes out, both with their gradients retained where they have any."""
    model = made(case)
    seen: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []

    def hook(unit: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        seen.append((unit, inputs[0], output))

    hooks = [unit.register_forward_hook(hook) for unit in dict.fromkeys(stream_units(model))]
    output = called(case, model)
    if output.requires_grad:
        backward(output)
    for handle in hooks:
        handle.remove()
    return seen


def rms(x: torch.Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def growth(case: FaultCase) -> float:
    """rms of the stream after the last unit over that after the first."""
    seen = through(case)
    return rms(seen[-1][2]) / rms(seen[0][2])


def gradient_ratio(case: FaultCase) -> float:
    """Norm of the gradient after the first unit over that after the last."""
    seen = through(case)
    first, last = seen[0][2].grad, seen[-1][2].grad
    assert first is not None
    assert last is not None
    return float(first.norm() / last.norm())


def likeness(case: FaultCase) -> float:
    """Mean cosine between the tokens that the head reads."""
    model = made(case)
    seen: list[torch.Tensor] = []
    model.head.register_forward_pre_hook(lambda _m, a: seen.append(a[0].detach()))
    called(case, model)
    x = F.normalize(seen[0].float(), dim=-1)
    t = x.shape[1]
    return float(((x @ x.transpose(1, 2)).sum((1, 2)) - t).mean() / (t * (t - 1)))


def differ(case: FaultCase, twin: FaultCase) -> None:
    """Same parameters where names agree, another output."""
    one, two = made(case), made(twin)
    mine, theirs = dict(one.named_parameters()), dict(two.named_parameters())
    for name in mine.keys() & theirs.keys() if mine.keys() == theirs.keys() else ():
        assert torch.equal(mine[name], theirs[name]), f"{name} is not the same in both"
    a, b = called(case, one), called(twin, two)
    if a.shape == b.shape:
        assert (a - b).abs().max() > 1e-4 * b.abs().max(), "the fault makes no difference"


def branch_off(case: FaultCase) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Input and output of each unit while every branch gives zero."""
    model = made(case)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    for unit in stream_units(model):
        if hasattr(unit, "branch"):
            unit.branch.register_forward_hook(lambda _m, _i, o: torch.zeros_like(o))
            unit.register_forward_hook(lambda _m, i, o: seen.append((i[0].detach(), o.detach())))
    called(case, model)
    assert seen
    yield from seen


def no_gradient(case: FaultCase, part: Callable[[str], bool]) -> bool:
    """Whether every parameter of that part (there is one) has no gradient, or zero."""
    model = made(case)
    backward(called(case, model))
    named = {n: p for n, p in model.named_parameters() if part(n)}
    assert named
    return all(p.grad is None or not p.grad.any() for p in named.values())


def ran(case: FaultCase, seeds: int = 8) -> set[frozenset[str]]:
    """For each seed the parameters that got a gradient."""
    found = set()
    for seed in range(seeds):
        model = made(case)
        backward(called(case, model, seed))
        found.add(frozenset(n for n, p in model.named_parameters() if p.grad is not None))
    return found
