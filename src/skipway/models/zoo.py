"""The zoo as data: backbones by name, and the table of which design fits which."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from skipway.blocks import Norm
from skipway.errors import UnknownNameError
from skipway.models.backbone import Backbone, depth_error
from skipway.models.backbone_conv import ConvNet
from skipway.models.backbone_token import LayerNet, TextNet, VisionTransformer

__all__ = ["FITS", "LISTED", "at_depth", "backbone"]

_CONV: Final = (
    "bn_after_add", "conv_shortcut", "dense", "dropout_shortcut", "exclusive_gate", "highway", "mean", "momentum",
    "multiply", "one_layer_skip", "plain", "post_act", "preact", "relu_before_add", "relu_only_preact", "revnet",
    "scaled", "shortcut_gate",
)  # fmt: skip
_TOKEN: Final = (
    "dense", "exclusive_gate", "highway", "mean", "momentum", "multiply", "plain", "post_act", "post_norm", "pre_norm",
    "revnet", "scaled", "shortcut_gate",
)  # fmt: skip
# Which design fits which family of backbones; contract tests and lists read this table.
FITS: Final[dict[str, tuple[str, ...]]] = {
    "cifar_resnet": _CONV,
    "cifar_plain": ("plain",),
    "imagenet_resnet": _CONV,
    "wide_resnet": _CONV,
    "densenet": ("dense",),
    "vit": _TOKEN,
    "gpt": _TOKEN,
    "bert": _TOKEN,
    "mlp": _TOKEN,
}

_IMAGENET: Final = {
    "basic": ((18, (2, 2, 2, 2)), (34, (3, 4, 6, 3))),
    "bottleneck": ((50, (3, 4, 6, 3)), (101, (3, 4, 23, 3)), (152, (3, 8, 36, 3)), (200, (3, 24, 36, 3))),
}
_DENSE121: Final = ((121, (6, 12, 24, 16)),)
# These are bottleneck nets in the papers although 6n+2 would fit some of them (arXiv 1603.05027).
_CIFAR_BOTTLENECKS: Final = (164, 1001)


def _cifar(depth: int, *, plain: bool = False) -> ConvNet:
    bottle = not plain and (depth in _CIFAR_BOTTLENECKS or ((depth - 2) % 6 != 0 and (depth - 2) % 9 == 0))
    if (depth - 2) % (9 if bottle else 6) or depth < 8:
        fits = [d for d in range(8, depth + 10) if (d - 2) % 6 == 0 or (not plain and (d - 2) % 9 == 0)]
        rule = "6n+2 layers" if plain else "6n+2 (basic) or 9n+2 (bottleneck) layers, or 18, 34, 50, 101, 152, 200"
        raise depth_error("plain" if plain else "resnet", depth, fits, rule)
    layers = 3 if bottle else 2
    return ConvNet(
        name=f"{'plain' if plain else 'resnet'}{depth}",
        family="cifar_plain" if plain else "cifar_resnet",
        design="plain" if plain else "post_act",
        depth=depth,
        num_classes=10,
        block="bottleneck" if bottle else "basic",
        counts=((depth - 2) // (3 * layers),) * 3,
        widths=(16, 32, 64),
        stem_width=16,
        shortcut="B" if bottle else "A",
        per_stage=(2, layers),
    )


def _imagenet(depth: int) -> ConvNet:
    block = "basic" if depth in dict(_IMAGENET["basic"]) else "bottleneck"
    return ConvNet(
        name=f"resnet{depth}", family="imagenet_resnet", design="post_act", depth=depth, num_classes=1000,
        block="basic" if block == "basic" else "bottleneck", counts=dict(_IMAGENET[block])[depth],
        widths=(64, 128, 256, 512), stem_width=64, stem_size="large", shortcut="B", listed=_IMAGENET[block],
        image_size=224,
    )  # fmt: skip


def _mlp(depth: int) -> LayerNet:
    return LayerNet(
        name=f"mlp{depth}", family="mlp", design="post_act", depth=depth, num_classes=10, width=64, act="tanh",
        features=64,
    )  # fmt: skip


_VIT_NORM: Final = Norm(kind="layer", eps=1e-6)
_NAMED: Final[dict[str, Backbone]] = {
    b.name: b
    for b in (
        # Without bottlenecks: 24 would be 2k, but the paper gives these nets 16 channels behind the stem.
        ConvNet(
            name="densenet40_12", family="densenet", design="dense(compression=1.0)", depth=40, num_classes=10,
            block="dense", counts=(12, 12, 12), widths=(12, 12, 12), stem_width=16, activated=False, per_stage=(4, 1),
            growth=12,
        ),
        ConvNet(
            name="densenet121", family="densenet", design="dense", depth=121, num_classes=1000, block="dense_bc",
            counts=(6, 12, 24, 16), widths=(32, 32, 32, 32), stem_width=64, stem_size="large", listed=_DENSE121,
            growth=32, image_size=224,
        ),
        ConvNet(
            name="wrn28_10", family="wide_resnet", design="preact", depth=28, num_classes=10, block="basic",
            counts=(4, 4, 4), widths=(160, 320, 640), stem_width=16, fixed_stem=True, shortcut="B", per_stage=(4, 2),
        ),
        VisionTransformer(
            name="vit_tiny", family="vit", design="pre_norm", depth=12, num_classes=10, width=192, heads=3,
            norm=_VIT_NORM, patch=4, image_size=32,
        ),
        VisionTransformer(
            name="vit_small_patch16_224", family="vit", design="pre_norm", depth=12, num_classes=1000, width=384,
            heads=6, norm=_VIT_NORM, patch=16, image_size=224,
        ),
        TextNet(
            name="gpt_nano", family="gpt", design="pre_norm(init=gpt2)", depth=4, num_classes=256, width=128, heads=4,
            norm=Norm(kind="layer"), causal=True, tied=True,
        ),
        TextNet(
            name="bert_nano", family="bert", design="post_norm", depth=4, num_classes=256, width=128, heads=4,
            norm=Norm(kind="layer", eps=1e-12), embedding_norm=True,
        ),
    )
}  # fmt: skip
_FAMILIES: Final = re.compile(r"(?P<family>resnet|plain|mlp)(?P<depth>\d{1,5})")
# Names that lists show; any depth that fits the family is a name.
LISTED: Final[tuple[str, ...]] = (
    *(f"plain{d}" for d in (20, 32, 44, 56, 110)),
    *(f"resnet{d}" for d in (20, 32, 44, 56, 110, 164, 1001, 1202)),
    *(f"resnet{d}" for d in (18, 34, 50, 101, 152, 200)),
    "mlp40",
    *_NAMED,
)


def at_depth(net: Backbone, depth: int) -> Backbone:
    """A backbone at another depth, which means what it means in a name where the family has names of any depth.

    Where a name means that very net, the net bears it; else it keeps its own: ``resnet20`` at depth 50 is a CIFAR net,
    and so no ``resnet50``, ``resnet164`` at depth 20 has bottlenecks, and so is no ``resnet20``.

    Args:
        net: one of `backbone`.
        depth: as `Backbone.with_depth` takes it.

    Raises:
        SkipwayError: the depth does not fit; names the nearest that do.
    """
    match = _FAMILIES.fullmatch(net.name)
    if match is None:
        return net.with_depth(depth)
    known = sorted(dict(_IMAGENET["basic"] + _IMAGENET["bottleneck"]))
    if net.family == "imagenet_resnet" and depth not in known:
        raise depth_error("resnet", depth, known, "depths " + ", ".join(map(str, known)))
    bottlenecks = isinstance(net, ConvNet) and net.block == "bottleneck"
    if net.family == "cifar_resnet" and (bottlenecks or depth in known):
        deeper = net.with_depth(depth)
        named = replace(deeper, name=f"resnet{depth}")
        return named if named == backbone(named.name) else deeper
    return backbone(f"{match['family']}{depth}")


def backbone(name: str) -> Backbone:
    """The backbone of that name.

    Raises:
        UnknownNameError: no such name.
        SkipwayError: a depth that does not fit its family; names the nearest that do.
    """
    if name in _NAMED:
        return _NAMED[name]
    match = _FAMILIES.fullmatch(name)
    if match is None:
        raise UnknownNameError("model", name, LISTED)
    depth = int(match["depth"])
    if match["family"] == "mlp":
        return _mlp(1).with_depth(depth) if depth < 1 else _mlp(depth)
    if match["family"] == "plain":
        return _cifar(depth, plain=True)
    return _imagenet(depth) if depth in dict(_IMAGENET["basic"] + _IMAGENET["bottleneck"]) else _cifar(depth)
