"""Initialisations of whole nets, before the design's own."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from skipway.models.stems import PatchStem

__all__ = ["Scheme", "initialise_"]

Scheme = Literal["he", "truncated", "gpt", "default"]


def initialise_(net: nn.Module, scheme: Scheme) -> None:
    """Set all weights.

    Args:
        net: the whole net.
        scheme: ``"he"``: convolutions normal with variance 2/fan-out, as fb.resnet.torch and torchvision have it
            (arXiv 1502.01852); ``"truncated"``: linear layers and embeddings truncated normal with standard deviation
            0.02, biases 0, as timm's ViT; ``"gpt"``: the same with a normal, as GPT-2 and BERT; ``"default"``:
            PyTorch's.
    """
    for module in net.modules():
        if scheme == "he" and isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif scheme in ("truncated", "gpt"):
            _transformer_(module, truncated=scheme == "truncated")


def _transformer_(module: nn.Module, *, truncated: bool) -> None:
    def draw(weight: Tensor) -> None:
        if truncated:
            nn.init.trunc_normal_(weight, std=0.02)
        else:
            nn.init.normal_(weight, std=0.02)

    if isinstance(module, nn.Linear | nn.Embedding):
        draw(module.weight)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, PatchStem):
        draw(module.positions)
        nn.init.normal_(module.class_token, std=1e-6)
