"""What the hardware offers, and the choices made from it: precision, layout, threads."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from skipway.errors import SkipwayError, UnknownNameError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from skipway.spec import RunSpec

__all__ = ["environment", "processor_name", "resolve_layout", "resolve_precision"]

_PRECISIONS: Final = ("auto", "32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
_PACKAGES: Final = ("torch", "torchvision", "numpy", "lightning-fabric", "skipway")


def resolve_precision(asked: str, device_type: str) -> str:
    """Fabric's precision; ``"auto"`` is bf16 autocast where the hardware computes in bf16, else float32.

    Raises:
        UnknownNameError: no such precision.
        SkipwayError: one that Fabric would replace by another.
    """
    if asked not in _PRECISIONS:
        raise UnknownNameError("precision", asked, _PRECISIONS)
    if asked == "16-mixed" and device_type == "cpu":
        raise SkipwayError("precision 16-mixed on a processor", "a GPU", "--precision bf16-mixed")
    if asked != "auto":
        return asked
    return "bf16-mixed" if _has_bf16(device_type) else "32-true"


def _has_bf16(device_type: str) -> bool:
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device_type == "cpu":
        if not hasattr(torch.cpu, "get_capabilities"):  # older PyTorch does not tell; float32 is always right
            return False
        known = torch.cpu.get_capabilities()
        return bool(known.get("avx512_bf16") or known.get("amx_bf16"))
    return False


def resolve_layout(asked: bool | None, model: nn.Module, *, sharded: bool = False) -> bool:
    """Whether images are stored channels-last: as asked, else wherever a model has convolutions and is not sharded.

    Raises:
        SkipwayError: asked for and sharded, of which FSDP2 knows nothing.
    """
    if asked and sharded:
        raise SkipwayError("--channels-last with strategy fsdp2", "contiguous weights", "--channels-first, or ddp")
    return not sharded and any(isinstance(m, nn.Conv2d) for m in model.modules()) if asked is None else asked


def environment(spec: RunSpec, *, fabric: Fabric, channels_last: bool) -> dict[str, Any]:
    """What a run ran on and with, as JSON-ready values."""
    device = fabric.device
    return {
        **{name: metadata.version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "precision": resolve_precision(spec.precision, device.type),
        "channels_last": channels_last,
        "devices": fabric.world_size,
        "strategy": spec.strategy,
    }


def processor_name() -> str:
    """The processor's own name; Python knows it on few systems."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
