"""What may stand on a shortcut whose shapes change: option A, a projection; and the error that spells it out.

Shapes: N batch, C channels, H and W image, T tokens, D width.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from skipway.blocks.slot import Layout, Make, Part
from skipway.errors import ShapeMismatchError
from skipway.form import Op

__all__ = ["SubsamplePad", "projection", "projection_code", "shape_mismatch", "subsample_pad"]


class SubsamplePad(nn.Module):
    """Option A: every `stride`-th pixel, and `extra` channels of zeros behind (arXiv 1512.03385, section 3.3).

    (N,C,H,W) to (N,C+extra,⌈H/stride⌉,⌈W/stride⌉).

    Args:
        stride: in pixels.
        extra: channels to add; where negative, that many of the last are cut off.
    """

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        """Subsample and pad."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.extra < 0:
            return x[:, : self.extra]
        return F.pad(x, (0, 0, 0, 0, 0, self.extra)) if self.extra else x

    def extra_repr(self) -> str:
        """The two numbers."""
        return f"stride={self.stride}, extra={self.extra}"


def subsample_pad(in_width: int, out_width: int, stride: int, *, cut: bool = False) -> tuple[Part, ...]:
    """Option A as what stands on a shortcut; nothing where the shape stays.

    Args:
        in_width: channels of the stream.
        out_width: channels of the branch.
        stride: by which the branch shrinks the image.
        cut: whether channels may be cut off where the branch has fewer.

    Raises:
        ShapeMismatchError: the branch has fewer channels than the stream, and none may be cut off.
    """
    if out_width < in_width and not cut:
        raise shape_mismatch("NCHW", in_width, out_width, stride, "shortcut=B")
    ops: tuple[Op, ...] = (Op("slice", f"stride{stride}"),) if stride > 1 else ()
    if out_width != in_width:
        ops += (Op("pad", "zero") if out_width > in_width else Op("slice", "part"),)
    if not ops:
        return ()
    extra = out_width - in_width
    return (Part(name="pad", make=Make(SubsamplePad, (stride, extra)), ops=ops, fresh=extra > 0),)


def _pointwise(in_width: int, out_width: int, stride: int) -> nn.Module:
    return nn.Conv2d(in_width, out_width, 1, stride=stride, bias=False)


def projection(in_width: int, out_width: int, stride: int, layout: Layout) -> tuple[Part, ...]:
    """A 1×1 convolution without bias on images, a linear layer on tokens."""
    if layout == "NTD":
        return (
            Part(
                name="proj",
                make=Make(nn.Linear, (in_width, out_width)),
                ops=(Op("projection", "linear"),),
            ),
        )
    op = Op("projection", "1x1" if stride == 1 else f"1x1/{stride}")
    return (
        Part(
            name="proj",
            make=Make(_pointwise, (in_width, out_width, stride)),
            ops=(op,),
        ),
    )


def projection_code(layout: Layout, in_width: int, out_width: int, stride: int) -> str:
    """The projection spelled out as code."""
    if layout == "NTD":
        return f"nn.Linear({in_width}, {out_width})"
    return f"nn.Conv2d({in_width}, {out_width}, kernel_size=1, stride={stride}, bias=False)"


def shape_mismatch(
    layout: Layout, in_width: int, out_width: int, stride: int, option: str = "", *, shapes: str = ""
) -> ShapeMismatchError:
    """The error for a shortcut and a branch that do not fit; names both shapes and the projection that mends it.

    Args:
        layout: of both.
        in_width: channels of the shortcut.
        out_width: channels of the branch.
        stride: by which the branch shrinks the image.
        option: design option that builds the projection, e.g. ``"shortcut=B"``.
        shapes: the measured shapes in words, where the model ran; else they are written with letters.
    """
    if not shapes:
        if layout == "NTD":
            shapes = f"shortcut (N, T, {in_width}), branch (N, T, {out_width})"
        else:
            shrunk = "H, W" if stride == 1 else f"H/{stride}, W/{stride}"
            shapes = f"shortcut (N, {in_width}, H, W), branch (N, {out_width}, {shrunk})"
    code = projection_code(layout, in_width, out_width, stride)
    hint = f"shortcut={code}" + (f", or the design option {option}" if option else "")
    return ShapeMismatchError(f"shortcut and branch do not fit: {shapes}", "equal shapes", hint)
