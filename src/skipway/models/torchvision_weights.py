"""torchvision's ResNet weights into our ResNets."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from skipway.blocks import ConvBlock
from skipway.designs.post_act import PostAct
from skipway.errors import SkipwayError
from skipway.models._load_weights import is_counter
from skipway.models.net import Net

__all__ = ["load_torchvision_state_dict", "torchvision_names"]


def load_torchvision_state_dict(model: Net, state_dict: Mapping[str, Tensor]) -> None:
    """Load the state dict of ``torchvision.models.resnet18`` … ``resnet152`` into our model of the same depth.

    Args:
        model: ``create_model("resnet18")`` and the like, with post-activation and option B shortcuts.
        state_dict: as torchvision's model returns it; counters of batches (``num_batches_tracked``) may lack.

    Raises:
        SkipwayError: another model or design; names that lack or remain; shapes that differ. Nothing is loaded then.
    """
    names = torchvision_names(model)
    ours = model.state_dict()
    # Counters of batches came later than torchvision's first weights; PyTorch goes without them, too.
    names = {own: theirs for own, theirs in names.items() if theirs in state_dict or not is_counter(theirs)}
    missing = sorted(theirs for theirs in names.values() if theirs not in state_dict)
    unexpected = sorted(set(state_dict) - set(names.values()))
    if missing or unexpected:
        raise SkipwayError(
            f"state dict that does not fit {model.name}: {len(missing)} names missing, {len(unexpected)} unexpected, "
            f"for example {', '.join((missing + unexpected)[:3])}",
            f"that of torchvision.models.{model.default_cfg['architecture']}",
        )
    for own, theirs in names.items():
        if ours[own].shape != state_dict[theirs].shape:
            raise SkipwayError(
                f"{theirs} has shape {tuple(state_dict[theirs].shape)}",
                f"{tuple(ours[own].shape)}, that of {own}",
                f"create_model({model.name!r}, num_classes={state_dict['fc.weight'].shape[0]})",
            )
    model.load_state_dict({own: state_dict[theirs] for own, theirs in names.items()}, strict=False)


def torchvision_names(model: Net) -> dict[str, str]:
    """The torchvision name for each of our state dict's names.

    Raises:
        SkipwayError: the model is no post-activation ImageNet ResNet.
    """
    design = model.design
    known = model.default_cfg["architecture"] in {f"resnet{d}" for d in (18, 34, 50, 101, 152, 200)}
    if not known or not isinstance(design, PostAct) or design.shortcut not in ("auto", "B"):
        raise SkipwayError(f"torchvision has no weights for {model.name!r}", "resnet18, 34, 50, 101 or 152, post_act")
    prefixes = {"stem.conv.": "conv1.", "stem.norm.": "bn1.", "head.fc.": "fc."}
    position: dict[int, int] = {}
    for i, unit in enumerate(model.stack.built_units()):
        site = unit.plan.site
        block = site.block
        assert isinstance(block, ConvBlock)
        place = position.get(site.stage, 0)
        position[site.stage] = place + 1
        layer = f"layer{site.stage + 1}.{place}."
        for k in range(1, 1 + len(block.convs)):
            prefixes[f"stack.units.{i}.branches.0.conv{k}."] = f"{layer}conv{k}."
            prefixes[f"stack.units.{i}.branches.0.norm{k}."] = f"{layer}bn{k}."
        prefixes[f"stack.units.{i}.join.shortcut.proj1."] = f"{layer}downsample.0."
        prefixes[f"stack.units.{i}.join.shortcut.norm1."] = f"{layer}downsample.1."
    names: dict[str, str] = {}
    for own in model.state_dict():
        prefix = own.rpartition(".")[0] + "."
        names[own] = prefixes[prefix] + own.removeprefix(prefix)
    return names
