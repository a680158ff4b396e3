"""The gradient by path length of public models in float64: `python tests/zoo/path_spectra.py [--only PATTERN]`.

Prints for each model how far the parts are from adding up to the gradient, and degree 0 from the gradient with all
branches cut off. Small weights are perturbed first: many models start with branches that end in zeros, and then
everything is of degree 0 and the checks say nothing.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]

import torch
from torch.utils._pytree import tree_map

from zoo.models import ZOO

if TYPE_CHECKING:
    from torch import nn

    from skipway.diagnostics.path_spectrum.result import PathSpectrum

__all__ = ["SINGLE_INSIDE", "SPECTRA", "spectrum_of"]

# One model a kind, of those that compute in double precision throughout.
SPECTRA: Final = (
    "timm/resnet18", "timm/resnetv2_50", "timm/dla34", "timm/efficientnet_b0", "timm/mobilenetv2_100",
    "timm/convnext_atto", "timm/poolformer_s12", "timm/mambaout_femto", "timm/ghostnet_100", "timm/repvgg_a0",
    "timm/rexnet_100", "timm/densenet121", "timm/vit_tiny_patch16_224", "tv/swin_t", "tv/mobilenet_v3_small", "hf/bert",
    "hf/gpt2", "hf/gptj(par)", "hf/falcon(par)", "hf/albert(shared)", "hf/bart", "hf/xlnet", "hf/fnet", "hf/wav2vec2",
    "hf/clip",
)  # fmt: skip
# Norms or scans in single precision, whatever the model is cast to.
SINGLE_INSIDE: Final = ("hf/llama", "hf/t5", "hf/deberta", "hf/mamba")
_SMALL: Final = 0.1
_NOISE: Final = 0.2


def spectrum_of(name: str, **how: Any) -> PathSpectrum:
    """The spectrum of a perturbed model of the zoo in float64, in eval mode."""
    from skipway.diagnostics.path_spectrum import path_spectrum

    model, batch = ZOO[name].make()
    _perturb(model.double())
    batch = tree_map(lambda v: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries' deprecations
        return path_spectrum(model, batch, name=name, **how)


def _perturb(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            constant = parameter.numel() > 1 and float(parameter.std()) == 0
            if constant or float(parameter.square().mean().sqrt()) < _SMALL:
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(_NOISE * noise)


def main() -> int:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="part of the names")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    worst = 0.0
    print(f"{'model':28} {'units':>5} {'sum':>8} {'degree 0':>8} {'beyond 0':>8} {'mean':>6}  carried     road")
    for name in (*SPECTRA, *SINGLE_INSIDE):
        if only in name:
            found = spectrum_of(name, sampled=0)
            beyond = 1 - abs(found.share[0]) / sum(map(abs, found.share))
            print(
                f"{name:28} {len(found.units):5} {found.sum_error:8.1e} {found.degree0_error:8.1e} {beyond:8.3f} "
                f"{found.mean_length:6.2f}  {found.carried:10}  {found.road}",
                flush=True,
            )
            if name in SPECTRA:
                worst = max(worst, found.sum_error, found.degree0_error)
    print(f"largest error of those in double precision: {worst:.1e}")
    return int(worst > 1e-10)


if __name__ == "__main__":
    raise SystemExit(main())
