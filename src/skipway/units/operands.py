"""An operand of a join in the torch function call that joins: where it stands, and how another is put in its place.

``x + F`` has two; of ``addmm(x, a, b)`` the second is the product a·b, of ``stack([x, F]).sum(0)`` each is a part of
the stack, of ``cat([x, F])`` a part of the list. In place (``y += x``) the first operand is also where the result goes:
its memory is given the new value, so that who looks at ``y`` later sees the sum whether or not the result is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from skipway.errors import SkipwayError
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.trace.graph import Address
    from skipway.units.find import Term
    from skipway.units.intercept import Run
    from skipway.units.locate import Located

__all__ = ["Change", "GradientScaled", "OperandEdit", "Scaled", "Slot", "in_place", "slot_of"]

_TWO: Final = frozenset(
    {
        "add", "add_", "__add__", "__iadd__", "__radd__", "sub", "sub_", "subtract", "subtract_", "__sub__", "__isub__",
        "rsub", "__rsub__", "mul", "mul_", "multiply", "multiply_", "__mul__", "__imul__", "__rmul__", "lerp", "lerp_",
    }
)  # fmt: skip
_SUMS: Final = frozenset({"sum", "mean"})
_CATS: Final = frozenset({"cat", "concat", "concatenate"})
_NAMES: Final = (("input", "self"), ("other", "end"))
_FACTORS: Final = (("mat1", "batch1", "mat", "tensor1"), ("mat2", "batch2", "vec", "tensor2"))


Change: TypeAlias = "Callable[[Run, torch.Tensor], torch.Tensor]"
"""Makes an operand's new value from its old one; with a method `factors` also that of a product that is not
made, and with one `inside` in place."""


class Scaled:
    """v → factor·v."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, _run: Run | None, value: torch.Tensor) -> torch.Tensor:
        """The value times the factor."""
        return _applied(_Times, value, self.factor)

    def inside(self, value: torch.Tensor) -> None:
        """The same, written to where the value is."""
        _applied(_TimesInside, value, self.factor, self.factor)

    def factors(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of a product a·b that is never made."""
        return self(None, a), b


class GradientScaled:
    """v → v, with the gradient into v times a factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, _run: Run | None, value: torch.Tensor) -> torch.Tensor:
        """The value itself."""
        return _applied(_GradientTimes, value, self.factor)

    def inside(self, value: torch.Tensor) -> None:
        """The same, where the value is."""
        _applied(_TimesInside, value, 1.0, self.factor)

    def factors(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of a product is linear in what comes into it, for either factor."""
        return self(None, a), self(None, b)


def _applied(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    out: torch.Tensor = function.apply(*arguments)
    return out


class _Times(torch.autograd.Function):
    """Times a factor, both ways. A gradient times 1 is handed on as it is.

    A product would be laid out anew, and sums over it further back would round in another order.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(value: torch.Tensor, factor: float) -> torch.Tensor:
        return value * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] if ctx.factor == 1.0 else gradients[0] * ctx.factor, None


class _GradientTimes(_Times):
    """Times a factor, backward only."""

    @staticmethod
    def forward(value: torch.Tensor, _factor: float) -> torch.Tensor:
        return value.view_as(value)


class _TimesInside(torch.autograd.Function):
    """Times one factor forward, in place, and another backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float, backward_factor: float) -> torch.Tensor:
        ctx.factor = backward_factor
        ctx.mark_dirty(value)
        return value if factor == 1.0 else value.mul_(factor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0] if ctx.factor == 1.0 else gradients[0] * ctx.factor, None, None


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an operand stands in a call.

    Args:
        address: the call.
        kind: ``"operand"`` (an argument), ``"product"`` (of two arguments), ``"layer"`` (of a stack), ``"part"`` (of a
            list).
        position: which of them; of a list, 0 is the first and 1 the last if it is the branch, else all others.
        count: how many there are.
    """

    address: Address
    kind: str
    position: int
    count: int
    others: bool = False


def slot_of(term: Term, located: Located, *, others: bool = False) -> Slot | str:
    """Where an operand of a join stands, or why it cannot be reached.

    Args:
        term: the operand.
        located: where it was recorded.
        others: of a concatenation, all parts but the one at the term's opposite end (its shortcut).
    """
    node = located.links.nodes[term.add]
    made = located.made(term.add)
    if made is None or made.address is None:
        function = node.caller[1] if node.caller else ""
        return f"inside {function}()" if function else "inside scripted code or a custom autograd function"
    name = made.address.function
    fused = node.attrs.get("fused", "")
    count = len(node.inputs)
    kind = ""
    if node.op == "cat" and name in _CATS:
        kind = "part"
    elif fused.startswith("stack"):
        kind = "layer" if name in _SUMS else ""
    elif fused in ops.ADDS_MATMUL or fused in ops.ADDS_PRODUCT:
        kind = ("product" if term.position else "operand") if name.rstrip("_") == fused else ""
    elif name in _TWO and count == 2:
        kind = "operand"
    return Slot(made.address, kind, term.position, count, others) if kind else f"inside {name}()"


def in_place(func: Callable[..., Any]) -> bool:
    """Whether a torch function writes its result into its first argument."""
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or (name.startswith("__i") and name[3:-2] in _OPERATORS)


_OPERATORS: Final = frozenset({"add", "sub", "mul", "truediv", "div"})


@dataclass(frozen=True, slots=True)
class OperandEdit:
    """Changes one operand of a join, then lets it go on.

    Args:
        slot: the operand.
        change: what becomes of it.
        unit: the unit's path, for errors.
    """

    slot: Slot
    change: Change
    unit: str

    def __call__(
        self,
        run: Run,
        go_on: Callable[..., Any],
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Stand in for the call that joins."""
        given: list[Any] = list(args)
        named = dict(kwargs)
        with run.aside():
            if self.slot.kind == "operand":
                self._operand(run, func, given, named)
            elif self.slot.kind == "product":
                self._product(given, named)
            elif self.slot.kind == "layer":
                self._layer(run, given, named)
            else:
                self._parts(run, given, named)
        return go_on(*given, **named)

    def _operand(self, run: Run, func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        at = self._where(self.slot.position, _NAMES[self.slot.position], args, kwargs)
        holder: Any = args if isinstance(at, int) else kwargs
        value = holder[at]
        if self.slot.position == 0 and in_place(func):
            inside = getattr(self.change, "inside", None)
            if inside is not None:
                inside(value)
            else:
                value.copy_(self.change(run, value.clone()))
        else:
            holder[at] = self.change(run, value)

    def _product(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        factors = getattr(self.change, "factors", None)
        if factors is None:
            raise SkipwayError(
                f"the operand of unit {self.unit!r} is a product that {self.slot.address.function}() never makes",
                "an alteration that scales it",
            )
        first = self._where(1, _FACTORS[0], args, kwargs)
        second = self._where(2, _FACTORS[1], args, kwargs)
        one: Any = args if isinstance(first, int) else kwargs
        two: Any = args if isinstance(second, int) else kwargs
        one[first], two[second] = factors(one[first], two[second])

    def _layer(self, run: Run, args: list[Any], kwargs: dict[str, Any]) -> None:
        at = self._where(0, _NAMES[0], args, kwargs)
        holder: Any = args if isinstance(at, int) else kwargs
        dims = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        dim = dims[0] if isinstance(dims, (tuple, list)) and len(dims) == 1 else dims
        if not isinstance(dim, int) or holder[at].shape[dim] != self.slot.count:
            raise self._otherwise()
        layers = list(holder[at].unbind(dim))
        layers[self.slot.position] = self.change(run, layers[self.slot.position])
        holder[at] = torch.stack(layers, dim)

    def _parts(self, run: Run, args: list[Any], kwargs: dict[str, Any]) -> None:
        parts = list(args[0] if args else kwargs["tensors"])
        branch = (-1 if self.slot.position == 0 else 0) if self.slot.others else (0 if self.slot.position == 0 else -1)
        for k in range(len(parts)):
            if (k == branch % len(parts)) != self.slot.others:
                parts[k] = self.change(run, parts[k])
        if args:
            args[0] = parts
        else:
            kwargs["tensors"] = parts

    def _where(self, position: int, names: tuple[str, ...], args: list[Any], kwargs: dict[str, Any]) -> int | str:
        if position < len(args):
            if isinstance(args[position], torch.Tensor):
                return position
        else:
            for name in names:
                if isinstance(kwargs.get(name), torch.Tensor):
                    return name
        raise self._otherwise()

    def _otherwise(self) -> SkipwayError:
        address = self.slot.address
        return SkipwayError(
            f"unit {self.unit!r} is joined otherwise in this call: the arguments of {address.function}() in "
            f"{address.path or '<root>'!r} are not those that were recorded",
            "calls that run the same code as the one in which the units were found",
        )
