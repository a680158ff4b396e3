"""Anybody's module as a branch: taken as it is, with one slot before it and one behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from skipway.blocks.block import Block, SequentialBranch, Style, check_slots
from skipway.blocks.slot import Layout, Mode, Slots, add_parts, ops_of
from skipway.errors import SkipwayError
from skipway.form import Op

__all__ = ["OpaqueBlock", "module_ops"]

_READS = ("in_channels", "in_features", "num_features", "embed_dim", "d_model")
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
    """

    style: ClassVar[Style] = "opaque"
    module: nn.Module
    reads: int
    writes: int
    shrinks: int
    tensor_layout: Layout

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

    @classmethod
    def of(
        cls,
        module: nn.Module,
        *,
        in_width: int | None = None,
        out_width: int | None = None,
        stride: int | None = None,
        layout: Layout | None = None,
    ) -> OpaqueBlock:
        """Wrap a module; what is not given is read off its first and last layers.

        Raises:
            SkipwayError: no module; a first layer that overwrites its input; a width neither given nor to be seen.
        """
        if not isinstance(module, nn.Module):
            raise SkipwayError(f"a branch of type {type(module).__name__}", "a torch.nn.Module")
        leaves = [m for m in module.modules() if not list(m.children()) or hasattr(m, "embed_dim")]
        if leaves and getattr(leaves[0], "inplace", False):
            raise SkipwayError(
                f"a branch that starts with {leaves[0]}: it overwrites x before the shortcut reads it",
                "a first layer that leaves its input alone",
                f"nn.{type(leaves[0]).__name__}() without inplace=True",
            )
        convs = [m for m in leaves if isinstance(m, nn.Conv2d)]
        reads = in_width if in_width is not None else _first(leaves, _READS)
        writes = out_width if out_width is not None else _first(leaves[::-1], _WRITES)
        if reads is None or writes is None:
            raise SkipwayError(
                f"a branch {type(module).__name__} whose width cannot be seen in its layers",
                "the number of channels that it reads and writes",
                "Unit(branch, …, in_width=64, out_width=64)",
            )
        if stride is None:
            stride = 1
            for layer in leaves:
                if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
                    step = layer.stride
                    stride *= step if isinstance(step, int) else step[0]
        seen: Layout = "NCHW" if convs or any(isinstance(m, nn.BatchNorm2d) for m in leaves) else "NTD"
        return cls(
            module=module,
            reads=reads,
            writes=writes,
            shrinks=stride,
            tensor_layout=seen if layout is None else layout,
        )


def _first(layers: list[nn.Module], names: tuple[str, ...]) -> int | None:
    for layer in layers:
        for name in names:
            value = getattr(layer, name, None)
            if isinstance(value, int):
                return value
        shape = getattr(layer, "normalized_shape", None)
        if shape:
            return int(shape[-1])
    return None


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
