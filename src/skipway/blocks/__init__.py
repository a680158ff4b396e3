"""Branches, norms and projections: everything that knows no skip."""

from skipway.blocks.attention import Attention, AttentionBlock
from skipway.blocks.block import Block, last_scale_or_weight, weight_layers
from skipway.blocks.conv import Conv, ConvBlock, basic, bottleneck
from skipway.blocks.mlp import LayerBlock, MLPBlock
from skipway.blocks.opaque import OpaqueBlock
from skipway.blocks.rebuild import Rebuilding
from skipway.blocks.slot import Layout, Mode, Norm, Part, Slots, activation, dropout

__all__ = [
    "Attention", "AttentionBlock", "Block", "Conv", "ConvBlock", "LayerBlock", "Layout", "MLPBlock", "Mode", "Norm",
    "OpaqueBlock", "Part", "Rebuilding", "Slots", "activation", "basic", "bottleneck", "dropout",
    "last_scale_or_weight", "weight_layers",
]  # fmt: skip
