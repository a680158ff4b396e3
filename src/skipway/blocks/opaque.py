"""Anybody's module as a branch: taken as it is, with one slot before it and one behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from skipway.blocks.block import Block, SequentialBranch, Style, check_slots
from skipway.blocks.slot import Layout, Mode, Slots, add_parts, ops_of
from skipway.blocks.trial import Trial, try_branch
from skipway.errors import SkipwayError
from skipway.form import Op

__all__ = ["OpaqueBlock", "module_ops"]

# By how much the sizes of an image may differ from a ratio of strides because of what was not padded.
_UNPADDED = 0.35
_READS = ("in_channels", "in_features", "num_features", "embed_dim", "d_model")
_ELSEWHERE = (nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose3d)
_WRITES = ("out_channels", "out_features", "num_features", "embed_dim", "d_model")


@dataclass(frozen=True, kw_only=True, eq=False)
class OpaqueBlock(Block):
    """A module that maps a tensor to a tensor. Slots ``start`` and ``end``.

    Args:
        module: the branch.
        reads: channels read.
        writes: channels written.
        shrinks: stride.
        tensor_layout: ``"NCHW"`` or ``"NTD"``.
        calls: paths of its norms and weight layers in order of execution, if that was found already.
    """

    style: ClassVar[Style] = "opaque"
    module: nn.Module
    reads: int
    writes: int
    shrinks: int
    tensor_layout: Layout
    calls: tuple[str, ...] | None = None

    @property
    def in_width(self) -> int:
        """Channels read."""
        return self.reads

    @property
    def out_width(self) -> int:
        """Channels written."""
        return self.writes

    @property
    def stride(self) -> int:
        """Stride of the module."""
        return self.shrinks

    @property
    def layout(self) -> Layout:
        """Layout of the module's tensors."""
        return self.tensor_layout

    def slots(self) -> dict[str, int]:
        """Slots and widths."""
        return {"start": self.reads, "end": self.writes}

    def ops(self, slots: Slots, mode: Mode) -> tuple[Op, ...]:
        """Operations as far as the module's leaves tell."""
        start, end = (ops_of(slots.get(name, ()), mode) for name in ("start", "end"))
        return (*start, *module_ops(self.module), *end)

    def build(self, slots: Slots) -> nn.Module:
        """The module itself, or a chain with what fills the slots."""
        check_slots(self, slots)
        if not any(slots.values()):
            return self.module
        branch = SequentialBranch()
        add_parts(branch, slots.get("start", ()), self.reads, self.tensor_layout, fresh=False)
        branch.add_module("branch", self.module)
        add_parts(branch, slots.get("end", ()), self.writes, self.tensor_layout, fresh=False)
        return branch

    def resized(self, *, in_width: int, out_width: int) -> OpaqueBlock:
        """Only what it already is.

        Raises:
            SkipwayError: other widths are asked for.
        """
        if (in_width, out_width) != (self.reads, self.writes) or self.shrinks != 1:
            raise SkipwayError(
                f"a branch that reads {self.reads} and writes {self.writes} channels at stride {self.shrinks}",
                f"for this design one that reads {in_width} and writes {out_width} at stride 1",
            )
        return self

    def layers(self) -> list[nn.Module]:
        """Norms and weight layers in order of execution, or all modules as they are registered where no run tells."""
        calls = self.calls
        if calls is None:
            found = try_branch(self.module, [self.reads], self.tensor_layout)
            calls = () if found is None else found.calls
        return [self.module.get_submodule(path) for path in calls] or list(self.module.modules())

    @classmethod
    def of(
        cls,
        module: nn.Module,
        *,
        in_width: int | None = None,
        out_width: int | None = None,
        stride: int | None = None,
        layout: Layout | None = None,
        usual: tuple[int | None, int | None] = (None, None),
    ) -> OpaqueBlock:
        """Wrap a module; what is not given is found by a run without data, or else read off its layers.

        Args:
            module: the branch.
            in_width: channels that it reads.
            out_width: channels that it writes.
            stride: by which it shrinks an image.
            layout: of its tensors.
            usual: what such branches read and write; holds where no run tells, and is tried first.

        Raises:
            SkipwayError: no module; a first layer that overwrites its input; a width neither given nor to be seen; a
                convolution over sequences or volumes.
        """
        if not isinstance(module, nn.Module):
            raise SkipwayError(f"a branch of type {type(module).__name__}", "a torch.nn.Module")
        leaves = [m for m in module.modules() if not list(m.children()) or hasattr(m, "embed_dim")]
        seen: Layout = "NCHW" if any(isinstance(m, nn.Conv2d | nn.BatchNorm2d) for m in leaves) else "NTD"
        where: Layout = seen if layout is None else layout
        in_place = bool(leaves) and bool(getattr(leaves[0], "inplace", False))
        other = where == "NTD" and layout is None and any(isinstance(m, _ELSEWHERE) for m in leaves)
        found: Trial | None = None
        if in_place or other or None in (in_width, out_width) or (stride is None and where == "NCHW"):
            likely = [usual[0], *_all(leaves, _READS)] if in_width is None else [in_width]
            found = try_branch(module, list(dict.fromkeys(w for w in likely if w is not None)), where)
        if other and found is None:
            raise _elsewhere(next(m for m in leaves if isinstance(m, _ELSEWHERE)))
        # The first layer registered may not be the first one called.
        if in_place and not (found is not None and found.spares_input):
            raise SkipwayError(
                f"a branch that starts with {leaves[0]}: it overwrites x before the shortcut reads it",
                "a first layer that leaves its input alone",
                f"nn.{type(leaves[0]).__name__}() without inplace=True",
            )
        if found is None:
            reads = _chosen(in_width, usual[0], _all(leaves, _READS))
            writes = _chosen(out_width, usual[1], _all(leaves[::-1], _WRITES))
        else:
            reads, writes = found.reads, found.writes if out_width is None else out_width
        if reads is None or writes is None:
            raise SkipwayError(
                f"a branch {type(module).__name__} whose width cannot be seen in its layers",
                "the number of channels that it reads and writes",
                "in_width=64, out_width=64, for Unit and Stack",
            )
        if stride is None:
            stride = _stride(leaves, None if found is None else found.shrunk)
        return cls(
            module=module,
            reads=reads,
            writes=writes,
            shrinks=stride,
            tensor_layout=where,
            calls=None if found is None else found.calls,
        )


def _chosen(given: int | None, usual: int | None, seen: list[int]) -> int | None:
    return given if given is not None else usual if usual is not None else next(iter(seen), None)


def _elsewhere(layer: nn.Module) -> SkipwayError:
    name = type(layer).__name__
    return SkipwayError(
        f"a branch with {name}, which reads neither images (N,C,H,W) nor tokens (N,T,D)",
        "a branch from one of these layouts to the same; it may transpose inside",
        'layout="NTD", in_width=64, out_width=64 for one that does, for Unit and Stack',
    )


def _stride(layers: list[nn.Module], shrunk: float | None) -> int:
    """The product of all strides, unless an image shrank otherwise: layers may stand side by side."""
    stride = 1
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            step = layer.stride
            stride *= step if isinstance(step, int) else step[0]
    if shrunk is None or abs(shrunk / stride - 1) < _UNPADDED:
        return stride
    return max(1, round(shrunk))


def _all(layers: list[nn.Module], names: tuple[str, ...]) -> list[int]:
    """What each layer says of its width, those that say nothing left out."""
    widths = []
    for layer in layers:
        values = (getattr(layer, name, None) for name in names)
        width = next((value for value in values if isinstance(value, int)), None)
        shape = getattr(layer, "normalized_shape", None)
        if width is None and shape:
            width = int(shape[-1])
        if width is not None:
            widths.append(width)
    return widths


_NAMED: dict[type[nn.Module], Op] = {
    nn.BatchNorm2d: Op("norm", "batch"),
    nn.LayerNorm: Op("norm", "layer"),
    nn.RMSNorm: Op("norm", "rms"),
    nn.GroupNorm: Op("norm", "group"),
    nn.Linear: Op("weight", "linear"),
    nn.MultiheadAttention: Op("weight", "attention"),
    nn.ReLU: Op("activation", "relu"),
    nn.GELU: Op("activation", "gelu"),
    nn.SiLU: Op("activation", "silu"),
    nn.Tanh: Op("activation", "tanh"),
    nn.Sigmoid: Op("activation", "sigmoid"),
}


def module_ops(module: nn.Module, *, on_shortcut: bool = False) -> tuple[Op, ...]:
    """Operations of a module by its leaves; leaves without a name in the vocabulary are left out."""
    if isinstance(module, nn.MultiheadAttention):
        return (_NAMED[nn.MultiheadAttention],)
    children = list(module.children())
    if children:
        return tuple(op for child in children for op in module_ops(child, on_shortcut=on_shortcut))
    if isinstance(module, nn.Conv2d):
        window = "x".join(str(k) for k in module.kernel_size)
        stride = f"/{module.stride[0]}" if module.stride[0] != 1 else ""
        return (Op("projection", window + stride) if on_shortcut else Op("weight", f"conv{window}{stride}"),)
    if isinstance(module, nn.Dropout):
        return (Op("dropout", module.p),)
    op = _NAMED.get(type(module))
    if op is not None and on_shortcut and op.kind == "weight":
        return (Op("projection", str(op.detail)),)
    return () if op is None else (op,)
