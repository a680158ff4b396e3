"""Which norm a norm-placement design uses."""

from __future__ import annotations

from typing import Literal, TypeAlias

from skipway.blocks import Norm
from skipway.designs._seam import Site

__all__ = ["NormOption", "chosen_norm"]

NormOption: TypeAlias = Literal["auto", "layer", "rms"]


def chosen_norm(site: Site, option: NormOption) -> Norm:
    """The norm named by `option`; ``"auto"`` is the site's, or a layer norm where a backbone on tokens has none."""
    if option == "auto":
        missing = site.norm.kind in ("none", "batch") and site.block.layout == "NTD"
        return Norm(kind="layer") if missing and not site.norm_named else site.norm
    return Norm(kind=option, eps=site.norm.eps)
