"""Every design × every backbone of the table, at the smallest size that has units of every kind of site."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

import skipway
from skipway.models import FITS, Net
from skipway.models.zoo import LISTED, backbone

__all__ = ["EACH", "OPTIONS", "PAIRS", "QUICK", "REPRESENTATIVES", "SMALL", "batch_for", "build", "listed_pairs"]

# One backbone for each family and kind of block, shrunk.
SMALL: Final[dict[str, dict[str, Any]]] = {
    "resnet20": {"depth": 14, "width": 8},
    "plain20": {"depth": 14, "width": 8},
    "resnet164": {"depth": 20, "width": 8},
    "resnet18": {"width": 8, "num_classes": 10},
    "resnet50": {"width": 8, "num_classes": 10},
    "wrn28_10": {"depth": 16, "width": 24},
    "densenet40_12": {"depth": 10, "width": 6},
    "densenet121": {"width": 8, "num_classes": 10},
    "vit_tiny": {"depth": 2, "width": 24, "image_size": 16},
    "vit_small_patch16_224": {"depth": 2, "width": 24, "image_size": 32, "num_classes": 10},
    "gpt_nano": {"depth": 2, "width": 24},
    "bert_nano": {"depth": 2, "width": 24},
    "mlp40": {"depth": 4, "width": 16, "in_channels": 16},
}
# What a name of the list shrinks to.
REPRESENTATIVES: Final = {
    name: name if name in SMALL else {"cifar_plain": "plain20", "cifar_resnet": "resnet20"}.get(
        backbone(name).family, "resnet18" if name == "resnet34" else "resnet50"
    )
    for name in LISTED
} | {"resnet1001": "resnet164"}  # fmt: skip
# Options that change what is built, beyond the defaults.
OPTIONS: Final = (
    "resnet20@post_act(shortcut=B)", "resnet20@post_act(shortcut=C)", "resnet20@post_act(zero_init=true)",
    "resnet164@post_act(shortcut=A)", "resnet20@preact(shortcut=B)", "resnet20@preact(shortcut=C)",
    "resnet20@preact(zero_init=true)", "wrn28_10@preact(dropout=0.3)", "resnet20@one_layer_skip(preact=true)",
    "resnet164@one_layer_skip(preact=true)", "resnet20@dropout_shortcut(inverted=true)",
    "resnet20@exclusive_gate(bias=0)", "resnet20@scaled(lam=1,mu=0.1)", "resnet20@scaled(lam=0.5,mu=1)",
    "resnet20@multiply(plus_one=false)", "resnet20@mean(keep=variance)", "resnet20@dense(growth=3,compression=1)",
    "gpt_nano@pre_norm(init=gpt2)", "gpt_nano@pre_norm(norm=rms)", "gpt_nano@pre_norm(zero_init=true)",
    "bert_nano@post_norm(norm=rms)", "mlp40@highway(bias=-1)", "mlp40@dense(growth=4)",
    "resnet20@revnet(shortcut=B)", "resnet20@momentum(shortcut=B)", "mlp40@momentum(gamma=0.5)",
)  # fmt: skip
PAIRS: Final = [f"{name}@{design}" for name in SMALL for design in FITS[backbone(name).family]] + list(OPTIONS)
# What the default tests look at: every design and option on three small backbones, of images, tokens and vectors. The
# others bring branches and stems, which know no design, and stand there with designs of each kind of state; two, which
# differ from the rest by their sizes, with their own design alone.
_WHOLE: Final = ("resnet20", "gpt_nano", "mlp40")
_SIZES: Final = ("resnet18", "vit_small_patch16_224")
_KINDS: Final = ("plain", "post_act", "preact", "highway", "dense", "revnet", "pre_norm", "post_norm")


def _quick(name: str) -> bool:
    base, _, design = name.partition("@")
    own = design == backbone(base).design
    return own or name in OPTIONS or base in _WHOLE or (base not in _SIZES and design in _KINDS)


QUICK: Final = [name for name in PAIRS if _quick(name)]
# All of them, those that are left out of the default tests marked.
EACH: Final = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.exhaustive]) for name in PAIRS]


def build(name: str, seed: int = 0) -> Net:
    """The small model of that name."""
    torch.manual_seed(seed)
    return skipway.create_model(name, **SMALL[name.partition("@")[0]])


def batch_for(model: Net, samples: int = 4) -> Tensor:
    """A small batch; ImageNet nets get small images too."""
    torch.manual_seed(1)
    size = model.default_cfg["input_size"]
    if len(size) == 3:
        # Patches fix the image size; ImageNet stems divide it by four.
        side = getattr(model.stem, "image_size", 32 if size[1] == 224 else 16)
        return torch.randn(samples, size[0], side, side)
    return model.dummy_input(samples)


def listed_pairs() -> list[str]:
    """Every listed backbone at its own depth with every design that fits."""
    return skipway.list_models("*@*")
