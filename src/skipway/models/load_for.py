"""A model by name for given data: the head as wide as the classes, the stem as wide as the image."""

from __future__ import annotations

import math

from torch import nn

from skipway.errors import SkipwayError
from skipway.models._load_timm import load_timm
from skipway.models._load_tv import load_tv
from skipway.models.create import build, parse_name
from skipway.models.load import load_model
from skipway.models.net import Net
from skipway.spec import RunSpec

__all__ = ["load_for", "load_for_run"]


def load_for(name: str, *, num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """The model called `name`, freshly initialised, for samples of one shape.

    Args:
        name: as `load_model` reads it.
        num_classes: K; the head of our own, torchvision's and timm's models is built for it, a factory's is as it is.
        input_shape: of a sample: (C,H,W), or (T,) token ids.

    Raises:
        UnknownNameError: nothing of that name.
        SkipwayError: one of our own backbones that does not read such samples.
        ModelRunError: the model's own code fails.
    """
    prefix, colon, rest = name.partition(":")
    if colon and prefix == "tv":
        return _reading(load_tv(rest, 2, num_classes).model, input_shape)
    if colon and prefix == "timm":
        return load_timm(rest, 2, num_classes, input_shape[0] if len(input_shape) == 3 else None).model
    if colon or name.endswith(".py"):
        return load_model(name).model
    return _own(name, num_classes, input_shape)


def load_for_run(spec: RunSpec, *, num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """The model of a run, freshly initialised, set as the spec says.

    Args:
        spec: of which model, memory and format of the stream count.
        num_classes: as for `load_for`.
        input_shape: as for `load_for`.

    Raises:
        UnknownNameError: nothing of that name.
        SkipwayError: as for `load_for`; what only our own models have is asked of another.
        ModelRunError: the model's own code fails.
    """
    model = load_for(spec.model, num_classes=num_classes, input_shape=input_shape)
    if spec.memory == "keep" and spec.residual_in_fp32 is None:
        return model  # as a factory may have set it
    if not isinstance(model, Net):
        asked = f"memory={spec.memory!r}" if spec.memory != "keep" else "residual_in_fp32"
        raise SkipwayError(
            f"{asked} with {spec.model}, whose units are its own", "one of our own models", "skipway list models"
        )
    if spec.memory != "keep":
        model.set_memory(spec.memory)
    if spec.residual_in_fp32 is not None:
        model.stack.set_residual_in_fp32(spec.residual_in_fp32)
    return model


def _reading(model: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """Grey images for nets of three colours: the first convolution's weights are summed over them.

    That is the net that sees the grey image as all three colours; timm builds it so, too.
    """
    if len(input_shape) == 3 and input_shape[0] == 1:
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and module.in_channels == 3:
                module.in_channels = 1
                module.weight = nn.Parameter(module.weight.detach().sum(1, keepdim=True))
                break
    return model


def _own(name: str, num_classes: int, input_shape: tuple[int, ...]) -> Net:
    net, design = parse_name(name)
    cfg = net.cfg()
    images, tokens = len(input_shape) == 3, cfg["input_dtype"] == "int64"
    if images == tokens:
        reads = "token ids" if tokens else "images"
        has = f"images {input_shape}" if images else f"sequences of {input_shape[0]} token ids"
        fits = "resnet20, wrn28_10, vit_tiny, mlp40" if images else "gpt_nano, bert_nano"
        raise SkipwayError(f"{name} reads {reads}, and the data are {has}", "a model that reads them", fits)
    if tokens:
        if input_shape[0] > cfg["context"]:
            raise SkipwayError(
                f"sequences of {input_shape[0]} tokens for {name}",
                f"at most {cfg['context']}, its context",
                f"--context {cfg['context']}",
            )
    elif len(cfg["input_size"]) == 1:
        net = net.with_input(in_channels=math.prod(input_shape), image_size=None)
    else:
        if input_shape[1] != input_shape[2]:
            raise SkipwayError(f"images of {input_shape[1]}×{input_shape[2]} pixels", "square ones", "--image-size")
        net = net.with_input(in_channels=input_shape[0], image_size=input_shape[1])
    return build(net, design, name=name.strip(), num_classes=num_classes)
