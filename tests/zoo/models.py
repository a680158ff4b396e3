"""169 public models whose residual units are known: the ground on which the inspector is judged."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from zoo.language import language_models
from zoo.truth import TRUTHS, Truth
from zoo.vision import vision_models

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SAMPLE", "ZOO", "ZooModel", "select"]


@dataclass(frozen=True)
class ZooModel:
    """One public model.

    Args:
        name: library and model, e.g. ``"timm/resnet50"``.
        builder: makes it with random weights, in eval mode.
        batcher: makes a batch for it: a tensor, or keyword arguments.
        truth: the right answer.
    """

    name: str
    builder: Callable[[], nn.Module]
    batcher: Callable[[nn.Module], Any]
    truth: Truth

    def make(self, seed: int = 0) -> tuple[nn.Module, Any]:
        """The model and a batch, the same for the same seed."""
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other libraries' deprecations are not ours to fix
            model = self.builder()
            return model, self.batcher(model)


def _collect() -> dict[str, ZooModel]:
    entries = {name: (build, batch) for name, build, batch in [*vision_models(), *language_models()]}
    if entries.keys() != TRUTHS.keys():
        raise AssertionError(f"models and truths differ in {sorted(entries.keys() ^ TRUTHS.keys())}")
    return {name: ZooModel(name, *entries[name], truth) for name, truth in TRUTHS.items()}


ZOO: Final = _collect()

# One small model a kind: post- and pre-activation, projections, slices, multi-branch, LayerScale, shared modules,
# parallel branches, encoder with decoder, state space, and none at all.
SAMPLE: Final = (
    "timm/resnet18",
    "timm/resnetv2_50",
    "timm/mobilenetv2_100",
    "timm/convnext_atto",
    "timm/ghostnet_100",
    "timm/rexnet_100",
    "timm/repvgg_a0",
    "timm/densenet121",
    "tv/mobilenet_v3_small",
    "tv/resnet18_fpn",
    "hf/bert",
    "hf/albert(shared)",
    "hf/gpt2",
    "hf/gptj(par)",
    "hf/llama",
    "hf/t5",
    "hf/mamba",
    "hf/deberta",
    "hf/clip",
)


def select(pattern: str) -> list[ZooModel]:
    """Models whose name contains `pattern`, or matches it where it holds ``*`` or ``?``."""
    wild = any(c in pattern for c in "*?")
    return [m for name, m in ZOO.items() if (fnmatch(name, pattern) if wild else pattern in name)]
