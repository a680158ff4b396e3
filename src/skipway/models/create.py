"""Models by name: ``BACKBONE[@DESIGN[(key=value,…)]]``."""

from __future__ import annotations

import fnmatch
from typing import Literal, get_args, overload

from torch import nn

from skipway.designs import DESIGNS, Design, design_from
from skipway.errors import SkipwayError, UnknownNameError
from skipway.models.backbone import Backbone
from skipway.models.backbone_token import TextNet
from skipway.models.heads import Head
from skipway.models.initial import draw_from_, initialise_, one_draw
from skipway.models.net import FeatureNet, Net
from skipway.models.stack import PlannedStack
from skipway.models.stems import TextStem
from skipway.models.zoo import FITS, LISTED, at_depth, backbone
from skipway.spec import Memory

__all__ = ["build", "create_model", "list_designs", "list_models", "parse_name"]


def parse_name(name: str) -> tuple[Backbone, Design]:
    """The backbone and the design that a name means.

    Raises:
        UnknownNameError: unknown backbone, design or option; suggests the nearest.
        SkipwayError: a depth that does not fit, a design that does not fit the backbone, a value of the wrong type.
    """
    base, at, text = name.strip().partition("@")
    net = backbone(base)
    if at and not text.strip():
        raise SkipwayError(f"no design behind '@' in {name!r}", "BACKBONE@DESIGN(key=value,…)", base)
    design = design_from(text or net.design)
    fits = FITS[net.family]
    if design.id not in fits:
        other = f"resnet{net.depth}@{design.id}" if net.family == "cifar_plain" else f"{base}@{fits[0]}"
        raise SkipwayError(f"design {design.id!r} does not fit {base!r}", "one of: " + ", ".join(fits), other)
    return net, design


@overload
def create_model(
    name: str,
    *,
    num_classes: int | None = ...,
    depth: int | None = ...,
    in_channels: int | None = ...,
    image_size: int | None = ...,
    width: int | None = ...,
    memory: Memory = ...,
    residual_in_fp32: bool | None = ...,
    features_only: Literal[False] = ...,
    out_indices: tuple[int, ...] | None = ...,
) -> Net: ...
@overload
def create_model(
    name: str,
    *,
    num_classes: int | None = ...,
    depth: int | None = ...,
    in_channels: int | None = ...,
    image_size: int | None = ...,
    width: int | None = ...,
    memory: Memory = ...,
    residual_in_fp32: bool | None = ...,
    features_only: Literal[True],
    out_indices: tuple[int, ...] | None = ...,
) -> FeatureNet: ...
def create_model(  # noqa: PLR0913  # stable keywords of the public API, all optional
    name: str,
    *,
    num_classes: int | None = None,
    depth: int | None = None,
    in_channels: int | None = None,
    image_size: int | None = None,
    width: int | None = None,
    memory: Memory = "keep",
    residual_in_fp32: bool | None = None,
    features_only: bool = False,
    out_indices: tuple[int, ...] | None = None,
) -> Net | FeatureNet:
    """Build a model by name, freshly initialised from PyTorch's generator.

    One number is drawn from it, whatever the model; with the same number, two designs of a backbone have the same
    initial weights in their stem, branches and head wherever the shapes are the same.

    Args:
        name: ``BACKBONE[@DESIGN[(key=value,…)]]``, e.g. ``"resnet110@preact"``; the bare name is the published default.
        num_classes: outputs; 0 for the pooled features; None for the backbone's.
        depth: layers as the name counts them, blocks for transformers; None for the name's. The model bears the name
            of that depth where it means this very net, ``resnet34`` for ``resnet18`` at 34 layers; else the given one.
        in_channels: of the image, numbers in a sample for ``mlp``; None for the backbone's.
        image_size: in pixels; None for the backbone's. Convolutional nets take any size all the same.
        width: channels of the first stage, what a unit of a DenseNet appends, width of the tokens; None for the
            backbone's. The rest is scaled in proportion; the stem of wide ResNets has 16 channels at any width.
        memory: ``"keep"`` activations; ``"recompute"`` what weight layers read from what the norms before them read;
            ``"checkpoint"``: run several units at a time again; ``"reversible"``: compute inputs back from outputs,
            with designs that have an inverse; ``"auto"``: the fastest of these that fits into the free memory of the
            device, chosen at the first training batch.
        residual_in_fp32: under autocast, keep the stream in float32 while the branches run in 16 bits; None: with
            designs that are reversible.
        features_only: return a module whose output is the list of the streams behind each stage.
        out_indices: with `features_only`, which stages.

    Raises:
        UnknownNameError: unknown backbone, design or option; suggests the nearest.
        SkipwayError: a depth that does not fit, a design that does not fit, an argument that the backbone has no use
        for.
    """
    if not isinstance(name, str):
        raise SkipwayError(
            f"a model name of type {type(name).__name__}", "a string", 'create_model("resnet110@preact")'
        )
    sizes = {"num_classes": num_classes, "depth": depth, "in_channels": in_channels, "width": width}
    for argument, value in (sizes | {"image_size": image_size}).items():
        least = 0 if argument == "num_classes" else 1
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise SkipwayError(f"{argument}={value!r}", f"an integer from {least}, or None for the backbone's own")
    net, design = parse_name(name)
    if depth is not None:
        _, at, text = name.partition("@")
        net = at_depth(net, depth)
        name = net.name + at + text
    if width is not None:
        net = net.with_width(width)
    net = net.with_input(in_channels=in_channels, image_size=image_size)
    if memory not in get_args(Memory):
        raise UnknownNameError("memory", memory, get_args(Memory))
    if out_indices is not None and not features_only:
        raise SkipwayError("out_indices without features_only", "features_only=True")
    model = build(net, design, name=name.strip(), num_classes=num_classes)
    model.set_memory(memory)
    model.stack.set_residual_in_fp32(residual_in_fp32)
    if features_only:
        return FeatureNet(model, reduction=net.reduction, out_indices=out_indices)
    return model


def build(net: Backbone, design: Design, *, name: str, num_classes: int | None = None) -> Net:
    """The model of a backbone and a design.

    Args:
        net: stem, sites and head as data.
        design: what stands at the sites.
        name: of the model.
        num_classes: outputs; None for the backbone's.
    """
    classes = net.num_classes if num_classes is None else num_classes
    with one_draw() as seed:
        stem = net.stem()
        stack = PlannedStack(design, net.sites())
        tied = isinstance(net, TextNet) and net.tied and stack.out_width == net.width and classes == net.vocabulary
        head = Head(stack.out_width, classes, pooling=net.pooling, bias=not tied)
        if tied:
            assert isinstance(stem, TextStem)
            assert isinstance(head.fc, nn.Linear)
            head.fc.weight = stem.tokens.weight
        cfg = {**net.cfg(), "architecture": net.name, "num_classes": classes}
        model = Net(name=name, stem=stem, stack=stack, head=head, default_cfg=cfg)
        initialise_(model, net.scheme, seed=seed)
        draw_from_(seed, design.id)
        design.init_(stack.built_units())
        design.init_head_(head)
    return model


def list_models(pattern: str = "*") -> list[str]:
    """Names of our own models that match a shell pattern; one with ``@`` lists designs too.

    Args:
        pattern: e.g. ``"resnet*"`` or ``"resnet20@*"``. Any depth that fits a family is a name, listed or not.
    """
    if "@" not in pattern:
        return [name for name in LISTED if fnmatch.fnmatchcase(name, pattern)]
    names = [f"{name}@{design}" for name in LISTED for design in FITS[backbone(name).family]]
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def list_designs(pattern: str = "*") -> list[str]:
    """Ids of the residual designs that match a shell pattern."""
    return DESIGNS.names(pattern)
