"""Inference form: batch norms folded into the convolutions beside them.

With its running mean μ and variance σ², a batch norm in eval mode is one scale and shift a channel:

    BN(y) = γ(y − μ)/√(σ² + ε) + β = s·y + t,    s = γ/√(σ² + ε),    t = β − s·μ

and a convolution takes that in, exactly, where nothing stands between the two:

    BN(W∗x + b) = (s·W)∗x + (s·b + t)            at the convolution's output, whatever its padding
    W∗BN(x) + b = (W·s)∗x + (b + Σ W·t)          at its input, only where no zeros are padded: t would be added to them

Shapes: N batch, C channels, H and W image; O channels written, I channels read, G groups.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from skipway.blocks import Attention
from skipway.blocks.block import SequentialBranch
from skipway.designs import Join
from skipway.errors import SkipwayError
from skipway.models.net import FeatureNet, Net
from skipway.models.stack import PlannedStack
from skipway.models.stems import ConvStem
from skipway.models.unit import PlannedUnit

__all__ = ["Affine", "FoldedNorm", "Folding", "fold"]

M = TypeVar("M", bound=nn.Module)
_MODELS: Final = (Net, FeatureNet, PlannedStack, PlannedUnit)
# Each child of these is read by itself: what follows it is not what stands behind it in the list of children.
_BRANCHING: Final = (*_MODELS, Join, Attention, nn.ModuleList)
_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_CONVS: Final = (nn.Conv2d, nn.Conv3d)
_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_Conv = nn.Conv2d | nn.Conv3d


class Affine(nn.Module):
    """``s·x + t`` for each channel: what is left of a batch norm between the stream and an activation.

    (N,C,…) to the same shape.

    Args:
        scale: s, (C,).
        shift: t, (C,).
    """

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(scale), nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift; the result has the type of `x`."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        scale, shift = self.scale.to(x.dtype).view(shape), self.shift.to(x.dtype).view(shape)
        # One kernel everywhere but on processors, where for NCHW it takes twice the time of these two.
        if x.device.type == "cpu" and x.is_contiguous():
            return (x * scale).add_(shift)
        return torch.addcmul(shift, x, scale)

    def extra_repr(self) -> str:
        """Channels."""
        return str(self.scale.numel())


@dataclass(frozen=True, kw_only=True)
class FoldedNorm:
    """What became of one batch norm.

    Args:
        norm: its path.
        form: ``"before"``: folded into the convolution before it; ``"behind"``: into the one behind it; ``"affine"``:
            a scale and shift in its place; ``"kept"``: a batch norm as before.
        into: path of the convolution; for ``"kept"`` the reason.
    """

    norm: str
    form: Literal["before", "behind", "affine", "kept"]
    into: str = ""

    def __str__(self) -> str:
        words = {"before": f"into {self.into}", "behind": f"into {self.into}", "affine": "affine"}
        return f"{self.norm}: {words.get(self.form, f'kept, {self.into}')}"


@dataclass(frozen=True)
class Folding:
    """What became of each batch norm of a model; its length is the number that went into a weight.

    Args:
        norms: in order of execution, those that were kept last.
    """

    norms: tuple[FoldedNorm, ...]

    def __len__(self) -> int:
        return sum(norm.form in ("before", "behind") for norm in self.norms)

    def __iter__(self) -> Iterator[FoldedNorm]:
        return iter(self.norms)

    def paths(self, form: str) -> tuple[str, ...]:
        """Paths of the norms of which that became."""
        return tuple(norm.norm for norm in self.norms if norm.form == form)

    def __repr__(self) -> str:
        affine, kept = len(self.paths("affine")), len(self.paths("kept"))
        return f"Folding({len(self)} of {len(self.norms)} batch norms into weights, {affine} as affine, {kept} kept)"


def fold(model: M) -> M:
    """A copy in eval mode whose batch norms are folded into the convolutions beside them, where that is exact.

    A norm right behind a convolution goes into it: ``conv-BN-ReLU`` becomes ``conv-ReLU``. A norm right before a
    convolution goes into it if no zeros are padded. Any other, such as the first norm of a pre-activation unit, which
    stands between the stream and a ReLU, becomes an `Affine`. Layer and RMS norms stay: they take their statistics
    anew from each input, in eval mode too.

    What went away is an `nn.Identity`, so that paths stay; hooks on it are gone. The copy's ``folding`` says what
    became of each norm. Its state dict fits any other folded model of the name. It has no batch statistics to train
    with, and is meant for inference.

    Neighbours are known from the order in which stems, branches and shortcuts are built, so only our own models are
    read. A branch of somebody's own is folded if it is an `nn.Sequential`; one with a ``forward`` of its own keeps its
    norms. What is used twice, be it a norm, a convolution or its weight, is not folded either.

    Args:
        model: a net of `create_model`, a `Stack` or a `Unit`; it is not changed.

    Raises:
        SkipwayError: another model.
    """
    known = isinstance(model, _MODELS)
    if not known:
        raise SkipwayError(
            f"fold on a {type(model).__name__}, whose order of layers is not known",
            "a model that skipway built: a net of create_model, a Stack or a Unit",
            'skipway.fold(skipway.create_model("resnet20"))',
        )
    folded = copy.deepcopy(model)
    with torch.no_grad():
        vars(folded)["folding"] = _Folder(folded).run()
    return folded.eval()


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A module under the name by which its parent calls it."""

    parent: nn.Module
    name: str
    path: str

    @property
    def module(self) -> nn.Module:
        return self.parent.get_submodule(self.name)

    def put(self, module: nn.Module) -> None:
        setattr(self.parent, self.name, module)

    def children(self) -> list[_Place]:
        return _children(self.module, f"{self.path}.")


def _children(module: nn.Module, prefix: str = "") -> list[_Place]:
    # Without a name twice; `named_children` leaves out the second name of a module.
    names = [name for name, child in vars(module)["_modules"].items() if child is not None]
    return [_Place(parent=module, name=name, path=prefix + name) for name in names]


def _chain(place: _Place) -> list[_Place]:
    """The modules that run one behind the other in this place, nested chains opened."""
    module = place.module
    if isinstance(module, ConvStem | SequentialBranch) or type(module).forward is nn.Sequential.forward:
        return [inner for child in place.children() for inner in _chain(child)]
    return [place]


def _chains(places: Iterable[_Place]) -> Iterator[list[_Place]]:
    for place in places:
        chain = _chain(place)
        yield chain
        for inner in chain:
            if isinstance(inner.module, _BRANCHING):
                yield from _chains(inner.children())


class _Folder:
    """Folds a model in place.

    Args:
        model: in eval mode.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        calls = Counter(module for _, module in model.named_modules(remove_duplicate=False))
        tensors = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
        self.once = {module for module, count in calls.items() if count == 1}
        self.takers = {module for module in self.once if type(module) in _CONVS and _own_weight(module, tensors)}
        self.affine: dict[nn.Module, Affine] = {}  # a norm that is used twice becomes one affine, used twice

    def run(self) -> Folding:
        """Fold every norm."""
        done = [
            self._fold(chain, i)
            for chain in _chains(_children(self.model))
            for i, place in enumerate(chain)
            if _foldable(place.module)
        ]
        kept = [
            FoldedNorm(norm=path, form="kept", into=_why_kept(module))
            for path, module in self.model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001  # the base of all of them
        ]
        return Folding((*done, *kept))

    def _fold(self, chain: list[_Place], i: int) -> FoldedNorm:
        place, norm = chain[i], chain[i].module
        assert _foldable(norm)
        scale, shift = _scale_and_shift(norm)
        if norm in self.once:
            before, behind = _nearest(chain[:i][::-1]), _nearest(chain[i + 1 :])
            if before is not None and self._takes(conv := before.module):
                _into_output(conv, scale, shift)
                place.put(nn.Identity())
                return FoldedNorm(norm=place.path, form="before", into=before.path)
            if behind is not None and self._takes(conv := behind.module) and _pads_no_zeros(conv):
                _into_input(conv, scale, shift)
                place.put(nn.Identity())
                return FoldedNorm(norm=place.path, form="behind", into=behind.path)
        assert norm.running_mean is not None
        dtype = norm.running_mean.dtype
        place.put(self.affine.setdefault(norm, Affine(scale.to(dtype), shift.to(dtype))))
        return FoldedNorm(norm=place.path, form="affine")

    def _takes(self, module: nn.Module) -> TypeGuard[_Conv]:
        return module in self.takers


def _own_weight(conv: nn.Module, tensors: Counter[int]) -> bool:
    """Whether the weight is a parameter of this module alone; one that is computed (weight norm, pruning) is none."""
    own = dict(conv.named_parameters(recurse=False))
    return "weight" in own and tensors[id(own["weight"])] == 1 and (conv.bias is None or "bias" in own)


def _foldable(module: nn.Module) -> TypeGuard[_BatchNorm]:
    return type(module) in _NORMS and module.running_mean is not None


def _why_kept(norm: nn.modules.batchnorm._BatchNorm) -> str:
    if norm.running_mean is None:
        return "without running statistics it normalises by the batch in eval mode too"
    if type(norm) not in _NORMS:
        return f"a {type(norm).__name__} may do more than a batch norm"
    return "in a module with a forward of its own"


def _nearest(places: list[_Place]) -> _Place | None:
    return next((place for place in places if type(place.module) is not nn.Identity), None)


def _pads_no_zeros(conv: _Conv) -> bool:
    if conv.padding_mode != "zeros":  # what is padded then is the norm's output, too
        return True
    return conv.padding == "valid" or (not isinstance(conv.padding, str) and not any(conv.padding))


def _exact(tensor: Tensor) -> Tensor:
    """In float64, so that folding rounds once; Apple's GPUs have none."""
    return tensor.detach() if tensor.device.type == "mps" else tensor.detach().double()


def _scale_and_shift(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """S and t of the equation above, (C,) each."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (_exact(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * _exact(norm.weight)
    shift = -scale * _exact(norm.running_mean)
    return scale, shift if norm.bias is None else shift + _exact(norm.bias)


def _into_output(conv: _Conv, scale: Tensor, shift: Tensor) -> None:
    weight = _exact(conv.weight)  # (O,I/G,…)
    bias = shift if conv.bias is None else shift + scale * _exact(conv.bias)
    _set(conv, weight * scale.view(-1, *(1,) * (weight.dim() - 1)), bias)


def _into_input(conv: _Conv, scale: Tensor, shift: Tensor) -> None:
    weight = _exact(conv.weight)

    def read(values: Tensor) -> Tensor:
        """(I,) as each output channel's group sees it, (O,I/G,1,…)."""
        rows = values.view(conv.groups, -1).repeat_interleave(conv.out_channels // conv.groups, 0)
        return rows.view(*rows.shape, *(1,) * (weight.dim() - 2))

    bias = (weight * read(shift)).flatten(1).sum(1)
    _set(conv, weight * read(scale), bias if conv.bias is None else bias + _exact(conv.bias))


def _set(conv: _Conv, weight: Tensor, bias: Tensor) -> None:
    old = conv.weight
    conv.weight = nn.Parameter(weight.to(old.dtype), requires_grad=old.requires_grad)
    conv.bias = nn.Parameter(bias.to(old.dtype), requires_grad=old.requires_grad)
