"""Designs whose state is one tensor: x' = f( h(x) ⊕ s·F(x) ). A design names what stands where; the rest is here.

Shapes: N batch, C channels, H and W image, T tokens, D width; h the shortcut's output and f the branch's have one
shape.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor, nn

from skipway.blocks import Block, Mode, OpaqueBlock, Part, activation, last_scale_or_weight
from skipway.blocks.opaque import module_ops
from skipway.blocks.shortcut import projection, shape_mismatch, subsample_pad
from skipway.blocks.slot import Make, chain, ops_of
from skipway.designs._registry import option
from skipway.designs._seam import BranchPlan, Design, Inputs, Join, Site, UnitLike, UnitPlan, forms_by_mode
from skipway.errors import ShapeMismatchError, SkipwayError
from skipway.form import Merge, Op, UnitForm

__all__ = [
    "Arrangement", "PostActLike", "ShortcutOption", "SingleJoin", "SingleStream", "after_activation", "final_norm",
    "own_layers", "post_arrangement", "pre_arrangement", "projection_parameters", "projects", "refuse_shortcut",
    "shortcut_parts", "zero_branch_ends_",
]  # fmt: skip


def _same(module: nn.Module) -> nn.Module:
    return module


ShortcutOption: TypeAlias = Literal["auto", "A", "B", "C"]


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Where norms and activations stand around the weights of a branch."""

    start: tuple[Part, ...] = ()
    between: tuple[Part, ...] = ()
    end: tuple[Part, ...] = ()


def post_arrangement(site: Site) -> Arrangement:
    """Norm and activation behind each weight: conv-BN-ReLU-conv-BN. Token blocks: norm first. Others as they come."""
    norm, act = site.norm.part(), activation(site.act)
    if site.block.style == "conv":
        return Arrangement(between=norm + act, end=norm)
    return Arrangement(start=norm) if site.block.style == "token" else Arrangement()


def pre_arrangement(site: Site) -> Arrangement:
    """Norm and activation before each weight: BN-ReLU-conv-BN-ReLU-conv; token blocks hold their activation inside."""
    norm = site.norm.part()
    if site.block.style == "token":
        return Arrangement(start=norm)
    both = norm + activation(site.act)
    return Arrangement(start=both, between=both)


def after_activation(site: Site) -> tuple[Part, ...]:
    """The activation behind the merge; token and layer blocks hold theirs inside the branch, so nothing there."""
    return activation(site.act) if site.block.style in ("conv", "opaque") else ()


def shortcut_parts(site: Site, choice: str | None = None, *, norm: bool = True) -> tuple[Part, ...]:
    """What stands on the shortcut.

    Args:
        site: where.
        choice: ``"A"``, ``"B"``, ``"C"``, ``"auto"`` for the backbone's own, or None where the design offers no choice.
        norm: whether a norm follows a projection on images.

    Raises:
        ShapeMismatchError: shapes change and nothing was chosen that mends it.
    """
    block, given = site.block, site.given_shortcut
    if given is not None:
        return (Part(name="given", make=Make(_same, (given,)), ops=module_ops(given, on_shortcut=True), fresh=False),)
    chosen = site.shortcut if choice in (None, "auto") else choice
    if projects(site, choice):
        behind = site.norm.part() if norm and block.layout == "NCHW" else ()
        return projection(block.in_width, block.out_width, block.stride, block.layout) + behind
    if not site.changes_shape:
        return ()
    if chosen == "A" and block.layout == "NCHW":
        return subsample_pad(block.in_width, block.out_width, block.stride, cut=site.cut)
    option_text = "" if choice is None else "shortcut=B"
    raise shape_mismatch(block.layout, block.in_width, block.out_width, block.stride, option_text)


def projects(site: Site, choice: str | None = None) -> bool:
    """Whether weights stand on the shortcut."""
    chosen = site.shortcut if choice in (None, "auto") else choice
    return site.given_shortcut is not None or chosen == "C" or (chosen == "B" and site.changes_shape)


def refuse_shortcut(design: Design, site: Site) -> None:
    """Raise if a module was given for the shortcut of a design that has none.

    Args:
        design: it.
        site: where.

    Raises:
        SkipwayError: one was given.
    """
    if site.given_shortcut is not None:
        raise SkipwayError(
            f"a module for the shortcut of design {design.id!r}, which has no place for it",
            "a design whose shortcut takes one, or no such module",
            "post_act",
        )


def final_norm(site: Site) -> tuple[Part, ...]:
    """The norm behind the last unit of nets whose token blocks start with one."""
    return site.norm.part() if site.block.style == "token" else ()


def projection_parameters(site: Site, choice: str, *, norm: bool = True) -> int:
    """Parameters that `shortcut_parts` adds: c·c' for a projection, 2c' for its norm on images, its bias on tokens."""
    block = site.block
    if site.given_shortcut is not None:
        return sum(parameter.numel() for parameter in site.given_shortcut.parameters())
    if not projects(site, choice):
        return 0
    weights = block.in_width * block.out_width
    if block.layout == "NTD":
        return weights + block.out_width
    return weights + (2 * block.out_width if norm and site.norm.kind != "none" else 0)


def own_layers(block: Block, branch: nn.Module) -> list[nn.Module]:
    """Modules of a branch in order of execution; what a design placed around anybody's module is none of it.

    Args:
        block: its plan.
        branch: as it was built.
    """
    return block.layers() if isinstance(block, OpaqueBlock) else list(branch.modules())


def zero_branch_ends_(units: Sequence[UnitLike]) -> None:
    """Set the last gain or weight of each branch to zero, so that it starts as F = 0 (arXiv 1706.02677)."""
    for unit in units:
        for branch, plan in zip(unit.branches, unit.plan.branches, strict=True):
            layer = last_scale_or_weight(own_layers(plan.block, branch))
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]  # norms and weight layers hold a tensor there
            if isinstance(layer.bias, Tensor):
                nn.init.zeros_(layer.bias)


class SingleJoin(Join):
    """Join of a single-tensor design.

    Args:
        site: where it stands.
        design: what stands where.
    """

    def __init__(self, site: Site, design: SingleStream) -> None:
        super().__init__()
        block, self.layout = site.block, site.block.layout
        self.in_width, self.out_width, self.stride = block.in_width, block.out_width, block.stride
        self.shared = chain(design.stream_parts(site), block.in_width, block.layout, fresh=False)
        skips = design.merge != "none"
        self.shortcut = chain(design.on_shortcut(site), block.out_width, block.layout, fresh=False) if skips else None
        # Without a merge f is what the branch returned; where that is anybody's, others may still read it.
        fresh = skips or block.style != "opaque"
        self.after = chain(design.behind(site), block.out_width, block.layout, fresh=fresh)

    def read(self, state: Tensor, t: Tensor | None) -> tuple[Inputs, Tensor]:
        """Branch and shortcut read the same x."""
        x = state if self.shared is None else self.shared(state)
        return ((x,),), x

    def write(self, carry: Tensor, outputs: tuple[Any, ...], t: Tensor | None) -> Tensor:
        """X' = f( combine(x, h(x), F(x)) )."""
        branch: Tensor = outputs[0]
        shortcut: Tensor = carry if self.shortcut is None else self.shortcut(carry)
        y = self.combine(carry, shortcut, branch)
        return y if self.after is None else self.after(y)

    def combine(self, x: Tensor, h: Tensor, f: Tensor) -> Tensor:
        """Merge the shortcut's output h with the branch's f; x is what both read."""
        return self.fit(h, f) + f

    def fit(self, h: Tensor, f: Tensor) -> Tensor:
        """`h`, if its shape is that of `f`.

        Raises:
            ShapeMismatchError: it is not.
        """
        if h.shape != f.shape:
            raise self._mismatch(h, f)
        return h

    def _mismatch(self, h: Tensor, f: Tensor) -> ShapeMismatchError:
        """The error, with a projection only where one would mend it."""
        shapes = f"shortcut {tuple(h.shape)}, branch {tuple(f.shape)}"
        channel, places = (1, slice(2, None)) if self.layout == "NCHW" else (-1, slice(None, -1))
        stride = -(-h.shape[2] // max(1, f.shape[2])) if self.layout == "NCHW" and h.dim() == f.dim() == 4 else 1
        if f.dim() == h.dim() and f.shape[places] == tuple(-(-size // stride) for size in h.shape[places]):
            return shape_mismatch(self.layout, h.shape[channel], f.shape[channel], stride, shapes=shapes)
        hint = (
            "padding in the branch, so that it keeps height and width: padding=1 with kernel_size=3"
            if self.layout == "NCHW"
            else "a branch that changes the last dimension only"
        )
        return ShapeMismatchError(f"shortcut and branch do not fit: {shapes}", "equal shapes", hint)


@dataclass(frozen=True, kw_only=True)
class SingleStream(Design):
    """Base of designs whose state is one tensor."""

    merge: ClassVar[Merge] = "add"
    join_type: ClassVar[type[SingleJoin]] = SingleJoin

    @abstractmethod
    def arrange(self, site: Site) -> Arrangement:
        """Norms and activations of the branch."""

    def stream_parts(self, site: Site) -> tuple[Part, ...]:
        """What stands on the stream before shortcut and branch part."""
        return ()

    def on_shortcut(self, site: Site) -> tuple[Part, ...]:
        """*h*."""
        return shortcut_parts(site)

    def behind(self, site: Site) -> tuple[Part, ...]:
        """*f*."""
        return ()

    def shortcut_tail(self, site: Site, mode: Mode) -> tuple[Op, ...]:
        """Operations that `SingleJoin.combine` applies to the shortcut's output."""
        return ()

    def branch_tail(self, site: Site, mode: Mode) -> tuple[Op, ...]:
        """Operations that `SingleJoin.combine` applies to the branch's output."""
        return ()

    def exit_parts(self, site: Site) -> tuple[Part, ...]:
        """What closes the stream behind the last unit, planned from its site."""
        return ()

    def entry_parts(self, site: Site) -> tuple[Part, ...]:
        """What opens the stream before the first unit, planned from its site."""
        return ()

    def sites(self, sites: Sequence[Site]) -> Sequence[Site]:
        """The sites as the design wants them; some cut them smaller."""
        return sites

    def plan(self, sites: Sequence[Site]) -> tuple[UnitPlan, ...]:
        """One unit a site."""
        return tuple(self._unit(site) for site in self.sites(sites))

    def _unit(self, site: Site) -> UnitPlan:
        if self.merge == "none":
            refuse_shortcut(self, site)
        arrangement = self.arrange(site)
        offered = site.block.slots()
        filled = {"start": arrangement.start, "between": arrangement.between, "end": arrangement.end}
        slots = {name: parts for name, parts in filled.items() if parts and (name in offered or name != "between")}
        branch = BranchPlan(block=site.block, slots=slots)
        skips = self.merge != "none"

        def form(mode: Mode) -> UnitForm:
            return UnitForm(
                shortcut=ops_of(self.on_shortcut(site), mode) + self.shortcut_tail(site, mode) if skips else (),
                merge=self.merge,
                branch=site.block.ops(slots, mode) + self.branch_tail(site, mode),
                after=ops_of(self.behind(site), mode),
            )

        return UnitPlan(
            site=site,
            branches=(branch,),
            forms=forms_by_mode(form),
            in_width=site.block.in_width,
            out_width=site.block.out_width,
            constant_state=not site.changes_shape,
        )

    def join(self, plan: UnitPlan) -> Join:
        """The join."""
        return self.join_type(plan.site, self)

    def entry(self, plans: Sequence[UnitPlan]) -> nn.Module | None:
        """Built from `entry_parts`."""
        site = plans[0].site
        return chain(self.entry_parts(site), site.block.in_width, site.block.layout, fresh=False)

    def exit(self, plans: Sequence[UnitPlan]) -> nn.Module | None:
        """Built from `exit_parts`."""
        site = plans[-1].site
        return chain(self.exit_parts(site), plans[-1].out_width, site.block.layout, fresh=False)


@dataclass(frozen=True, kw_only=True)
class PostActLike(SingleStream):
    """Base of the variants of the original unit: conv-BN-ReLU-conv-BN, merge, ReLU.

    On tokens and layer stacks, whose blocks hold their activation inside, nothing follows the merge; token blocks start
    with their norm, and one more norm stands behind the last unit.
    """

    shortcut: ShortcutOption = option("auto", "shortcut where shapes change; auto: the backbone's published one")

    def arrange(self, site: Site) -> Arrangement:
        """conv-BN-ReLU-conv-BN."""
        return post_arrangement(site)

    def on_shortcut(self, site: Site) -> tuple[Part, ...]:
        """Option A, B or C."""
        return shortcut_parts(site, self.shortcut)

    def behind(self, site: Site) -> tuple[Part, ...]:
        """ReLU on images."""
        return after_activation(site)

    def exit_parts(self, site: Site) -> tuple[Part, ...]:
        """A final norm on tokens."""
        return final_norm(site)

    def extra_parameters(self, sites: Sequence[Site]) -> int | None:
        """Projections and their norms."""
        return sum(projection_parameters(site, self.shortcut) for site in sites)
