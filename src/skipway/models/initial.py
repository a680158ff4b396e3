"""Initialisations of whole nets, before the design's own, and the random numbers that they take.

Every module draws from numbers of its own, which depend on the seed and on its place in the net alone. So two designs
that are built from one seed start with the same weights wherever they have a weight of the same place and shape, and a
difference between them is the design's.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn

from skipway.models.stems import PatchStem

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Scheme", "draw_from_", "initialise_", "one_draw"]

_DRAWING: Final = (nn.Conv2d, nn.Linear, nn.Embedding, PatchStem)
Scheme = Literal["he", "truncated", "gpt", "default"]


@contextmanager
def one_draw() -> Iterator[int]:
    """Take one number from the processor's generator as a seed; what is drawn inside moves no generator further."""
    seed = int(torch.randint(2**62, (), device="cpu"))
    with torch.random.fork_rng(devices=[]), _accelerator() as accelerator:
        state = None if accelerator is None else accelerator.get_rng_state()
        try:
            yield seed
        finally:
            if accelerator is not None:
                accelerator.set_rng_state(state)


@contextmanager
def _accelerator() -> Iterator[Any]:
    """PyTorch's module for the device that modules are built on, made the current one; None on the processor."""
    device = torch.get_default_device()
    if device.type in ("cpu", "meta"):
        yield None
        return
    module = torch.get_device_module(device)
    with nullcontext() if device.index is None else module.device(device.index):
        yield module


def draw_from_(seed: int, place: str) -> None:
    """Let the generators that weights are drawn from go on from a place in the net; all others stay as they are."""
    digest = hashlib.blake2b(f"{seed} {place}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1
    torch.default_generator.manual_seed(number)
    with _accelerator() as accelerator:
        if accelerator is not None:
            accelerator.manual_seed(number)


def initialise_(net: nn.Module, scheme: Scheme, *, seed: int) -> None:
    """Set all weights.

    Args:
        net: the whole net.
        scheme: ``"he"``: convolutions normal with variance 2/fan-out, as fb.resnet.torch and torchvision have it
            (arXiv 1502.01852); ``"truncated"``: linear layers and embeddings truncated normal with standard deviation
            0.02, biases 0, as timm's ViT; ``"gpt"``: the same with a normal, as GPT-2 and BERT; ``"default"``:
            PyTorch's.
        seed: every module draws from it and from its own name.
    """
    for place, module in net.named_modules():
        if not isinstance(module, _DRAWING):
            continue
        draw_from_(seed, place)
        if scheme == "he" and isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            continue
        if not isinstance(module, PatchStem):
            module.reset_parameters()
        if scheme in ("truncated", "gpt"):
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
