"""A model: stem, stack, head, with timm's habits.

Shapes: N batch, C channels, H and W image, T tokens, D width, K classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from skipway.designs import Design
from skipway.errors import SkipwayError
from skipway.models.compiled import CompiledUnits
from skipway.models.heads import Head, Pooling
from skipway.models.memory import MemoryModes
from skipway.models.stack import PlannedStack

__all__ = ["FeatureInfo", "FeatureNet", "Net"]


class Net(MemoryModes, CompiledUnits, nn.Module):
    """``head(stack(stem(x)))``.

    Args:
        name: as `create_model` reads it back.
        stem: input to stream.
        stack: the units.
        head: stream to output.
        default_cfg: what the model is called with: ``input_size`` without the batch, ``input_dtype``, ``num_classes`` …
    """

    def __init__(
        self, *, name: str, stem: nn.Module, stack: PlannedStack, head: Head, default_cfg: dict[str, Any]
    ) -> None:
        super().__init__()
        self.name, self.default_cfg = name, default_cfg
        self.num_classes, self.num_features = int(default_cfg["num_classes"]), stack.out_width
        self.stem, self.stack, self.head = stem, stack, head

    @property
    def design(self) -> Design:
        """The residual design of its units."""
        return self.stack.design

    def forward(self, x: Tensor) -> Tensor:
        """Input to logits."""
        self.settle_memory(x)
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """Input to the closed stream, (N,C,H,W) or (N,T,D)."""
        features: Tensor = self.stack(self.stem(x))
        return features

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Closed stream to logits (N,K), or to the pooled features."""
        logits: Tensor = self.head(x, pre_logits=pre_logits)
        return logits

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: Pooling | None = None) -> None:
        """A new last layer, freshly initialised by PyTorch's default.

        Args:
            num_classes: K; 0 for none.
            global_pool: ``"average"``, ``"first"`` or ``"all"``; None leaves it.

        Raises:
            SkipwayError: a negative number; pooling that does not fit.
        """
        parameter = next(self.parameters())
        self.head.reset(num_classes, global_pool)
        self.head.to(device=parameter.device, dtype=parameter.dtype)
        self.num_classes = num_classes
        self.default_cfg = {**self.default_cfg, "num_classes": num_classes}

    def dummy_input(self, batch_size: int = 2) -> Tensor:
        """A random batch that the model can be called with: on the device of its weights, numbers of their type.

        It is drawn from the processor's generator.

        Args:
            batch_size: samples.
        """
        weight = next(parameter for parameter in self.parameters() if parameter.is_floating_point())
        shape = (batch_size, *self.default_cfg["input_size"])
        if self.default_cfg["input_dtype"] == "int64":
            return torch.randint(self.default_cfg["vocabulary"], shape, device="cpu").to(weight.device)
        return torch.randn(shape, device="cpu", dtype=torch.float32).to(device=weight.device, dtype=weight.dtype)

    def extra_repr(self) -> str:
        """The name, and how activations are dealt with if they are not kept."""
        return self.name + ("" if self.memory == "keep" else f", {self.memory_text()}")


class FeatureInfo:
    """What a `FeatureNet` returns.

    Args:
        entries: for each map ``num_chs`` (channels), ``reduction`` (input pixels per step) and ``module`` (its unit).
    """

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.entries = entries

    def channels(self) -> list[int]:
        """Channels of each map."""
        return [int(entry["num_chs"]) for entry in self.entries]

    def reduction(self) -> list[int]:
        """Input pixels per step of each map."""
        return [int(entry["reduction"]) for entry in self.entries]

    def module_name(self) -> list[str]:
        """Path of the unit behind which each map is taken."""
        return [str(entry["module"]) for entry in self.entries]

    def __len__(self) -> int:
        return len(self.entries)


class FeatureNet(MemoryModes, CompiledUnits, nn.Module):
    """The stream behind the last unit of each stage, as a list.

    Args:
        net: the whole net; it stays as it is, and its weights are shared. Its head and its exit are not applied.
        reduction: input pixels per step behind the stem.
        out_indices: which stages, returned in order of depth, at least one; None for all.

    Raises:
        SkipwayError: no such stage, or none.
    """

    def __init__(self, net: Net, *, reduction: int, out_indices: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.name, self.default_cfg = net.name, net.default_cfg
        self.stem, self.memory = net.stem, net.memory
        plans = [unit.plan for unit in net.stack.built_units()]
        ends: dict[int, int] = {plan.site.stage: i for i, plan in enumerate(plans)}
        steps = [reduction]
        for plan in plans:
            steps.append(steps[-1] * plan.site.block.stride)
        stages = sorted(ends)
        chosen = tuple(stages) if out_indices is None else tuple(sorted(set(out_indices)))
        if wrong := [stage for stage in chosen if stage not in ends]:
            raise SkipwayError(f"out_indices {wrong} of {net.name}", f"stages from 0 to {stages[-1]}")
        if not chosen:
            raise SkipwayError(f"out_indices=() of {net.name}", f"one or more stages from 0 to {stages[-1]}")
        self.taps = tuple(ends[stage] for stage in chosen)
        self.stack = net.stack.first(1 + max(self.taps))
        self.feature_info = FeatureInfo(
            [
                {"num_chs": plans[i].out_width, "reduction": steps[i + 1], "module": f"stack.units.{i}"}
                for i in self.taps
            ]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """Input to a list of (N,C,H,W) or (N,T,D)."""
        self.settle_memory(x)
        features: list[Tensor] = self.stack.run(self.stem(x), self.taps)[1]
        return features
