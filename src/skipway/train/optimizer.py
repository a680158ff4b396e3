"""The optimiser of a model: parameters grouped by the design's rule, the fused implementation where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skipway.errors import SkipwayError
from skipway.models.net import Net

if TYPE_CHECKING:
    from torch import nn

    from skipway.spec import OptimizerSpec

__all__ = ["build_optimizer", "set_rate"]


def build_optimizer(model: nn.Module, spec: OptimizerSpec, *, fused: bool = True) -> torch.optim.Optimizer:
    """The optimiser over all parameters that need a gradient.

    Args:
        model: any module; one of ours may multiply learning rate, decay and eps for some parameters.
        spec: the optimiser and its base values.
        fused: one kernel over all parameters of a group, where the device has it.

    Raises:
        SkipwayError: nothing is to be trained.
    """
    groups: dict[tuple[float, float, float], list[nn.Parameter]] = {}
    rules = _rules(model, spec)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        rate, decay, eps = rules.get(parameter, (1.0, 1.0, 1.0))
        if spec.decay == "matrices" and parameter.ndim < 2:
            decay = 0.0
        groups.setdefault((rate, decay, eps), []).append(parameter)
    made = [
        {"params": members, "lr": spec.lr * rate, "weight_decay": spec.weight_decay * decay, "eps": spec.eps * eps}
        for (rate, decay, eps), members in groups.items()
    ]
    if not made:
        raise SkipwayError("no parameter of the model needs a gradient", "something to train")
    devices = {p.device.type for p in model.parameters()}
    real = all(p.is_floating_point() for members in groups.values() for p in members)
    fused = fused and real and devices <= {"cpu", "cuda"}
    optimizer: torch.optim.Optimizer
    if spec.name == "adamw":
        optimizer = torch.optim.AdamW(made, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=fused)
    else:
        for group in made:
            del group["eps"]
        optimizer = torch.optim.SGD(
            made, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, fused=fused or None
        )
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Every group's learning rate to this share of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * share


def _rules(model: nn.Module, spec: OptimizerSpec) -> dict[nn.Parameter, tuple[float, float, float]]:
    """Multipliers of learning rate, weight decay and eps by parameter, as the design of one of our nets says."""
    if not isinstance(model, Net):
        return {}
    return {
        parameter: (rule.lr, rule.weight_decay, rule.eps)
        for rule in model.design.param_groups(model.stack.built_units(), spec)
        for parameter in rule.parameters
    }
