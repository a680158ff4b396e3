"""The vocabulary in which build and inspect meet: one residual unit as a formula.

A unit is ``x' = f( h(x) ⊕ s·F(x) )``: *h* the shortcut, *F* the branch, *s* its scale, *⊕* the merge, *f* what
follows the
merge. `UnitForm` holds the formula as tuples of `Op`, prints it as an equation and reads it back. No tensors here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from skipway.errors import SkipwayError

__all__ = ["KINDS", "MERGES", "Merge", "Op", "UnitForm", "read_term", "term"]

Merge = Literal["add", "lerp", "concat", "multiply", "mean", "none"]
MERGES: Final = ("add", "lerp", "concat", "multiply", "mean", "none")
KINDS: Final = (
    "norm", "activation", "weight", "scale", "gate", "projection", "pool", "pad", "slice", "dropout", "drop_path",
)  # fmt: skip

_FIXED: Final = {
    ("norm", "batch"): "BN",
    ("norm", "layer"): "LN",
    ("norm", "rms"): "RMSNorm",
    ("norm", "group"): "GN",
    ("norm", "instance"): "IN",
    ("norm", "weight"): "WN",
    ("activation", "relu"): "ReLU",
    ("activation", "relu6"): "ReLU6",
    ("activation", "gelu"): "GELU",
    ("activation", "silu"): "SiLU",
    ("activation", "tanh"): "Tanh",
    ("activation", "sigmoid"): "Sigmoid",
    ("activation", "leaky_relu"): "LeakyReLU",
    ("activation", "elu"): "ELU",
    ("activation", "selu"): "SELU",
    ("activation", "celu"): "CELU",
    ("activation", "mish"): "Mish",
    ("activation", "hardswish"): "HardSwish",
    ("activation", "softplus"): "Softplus",
    ("activation", "prelu"): "PReLU",
    ("weight", "attention"): "Attn",
    ("weight", "linear"): "Linear",
    ("weight", "conv"): "Conv",
    ("weight", "embedding"): "Embed",
    ("projection", "linear"): "Linear",
    ("scale", "learned scalar"): "α",
    ("scale", "learned vector"): "λ",
    ("gate", "g"): "g",
    ("gate", "1-g"): "(1-g)",
    ("pad", "zero"): "ZeroPad",
    ("pool", "avg"): "AvgPool",
    ("pool", "max"): "MaxPool",
}
# A convolution is `conv3x3/2` on a branch (kind weight) and `3x3/2` on a shortcut (kind projection): kernel,
# then stride.
_WINDOW: Final = re.compile(r"\d+(?:x\d+)*(?:/\d+(?:x\d+)*)?")
_PREFIXED: Final = {
    ("weight", "conv"): "Conv",
    ("weight", "convT"): "ConvT",
    ("weight", "dwconv"): "DWConv",
    ("weight", "gconv"): "GConv",
    ("projection", ""): "Conv",
    ("pool", "avg"): "AvgPool",
    ("pool", "max"): "MaxPool",
    ("slice", "stride"): "Stride",
}
_DETAIL: Final = re.compile(r"[A-Za-z0-9_./\-]*|learned (?:scalar|vector)")
_GENERIC: Final = re.compile(r"(?P<kind>[a-z_]+)\[(?P<detail>[A-Za-z0-9_./+\- ]*)\]")
_EQUATION: Final = re.compile(r"(?:\[(?P<stream>[^\]]+)\] )?x' = (?:(?P<after>\S+)\( (?P<inner>.*) \)|(?P<bare>.*))")
_TAIL: Final = frozenset({"norm", "activation", "scale", "gate", "dropout", "drop_path"})


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a unit.

    Args:
        kind: one of `KINDS`.
        detail: which one: a name (``"batch"``, ``"conv3x3/2"``, ``"learned vector"``), a number (``0.5`` for a
            scale, the
            probability for dropout and drop-path), or empty.

    Raises:
        SkipwayError: the kind is unknown, or the detail cannot be printed and read back.
    """

    kind: str
    detail: str | float = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SkipwayError(f"unknown kind of operation {self.kind!r}", "one of " + ", ".join(KINDS))
        if isinstance(self.detail, int | float):
            object.__setattr__(self, "detail", float(self.detail))
        elif not _DETAIL.fullmatch(self.detail):
            raise SkipwayError(
                f"operation detail {self.detail!r} of {self.kind!r}", "letters, digits and _ . / -, or a number"
            )

    def __str__(self) -> str:
        """The operation as it stands in an equation, e.g. ``BN``, ``Conv3x3/2``, ``0.5``, ``Dropout[0.5]``."""
        detail = self.detail
        if isinstance(detail, float):
            return repr(detail) if self.kind == "scale" else f"{self.kind}[{detail!r}]"
        if text := _FIXED.get((self.kind, detail)):
            return text
        for (kind, prefix), text in _PREFIXED.items():
            window = detail.removeprefix(prefix)
            if kind == self.kind and detail.startswith(prefix) and _WINDOW.fullmatch(window):
                return text + window
        return f"{self.kind}[{detail}]"

    @property
    def is_number(self) -> bool:
        """Whether this is multiplication by a known number."""
        return self.kind == "scale" and isinstance(self.detail, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitForm:
    """A residual unit as a formula, ``x' = after( shortcut(x) ⊕ branch(x) )``.

    Args:
        shortcut: *h*, in order of execution; empty means identity.
        merge: how shortcut and branch meet; ``"none"`` means that there is no shortcut.
        branch: the whole branch *s·F* in order of execution.
        after: *f*, in order of execution; empty means identity.
        stream: ``"single"``, ``"pair"``, ``"streams(n)"`` or ``"history"``.
        parallel: further branches that read the same x and join in the same place (attention beside MLP).

    Raises:
        SkipwayError: an unknown merge or stream, a ``weight`` on the shortcut (there it is a ``projection``), a
            ``projection`` elsewhere, or a shortcut where nothing is merged.
    """

    shortcut: tuple[Op, ...] = ()
    merge: Merge = "add"
    branch: tuple[Op, ...] = ()
    after: tuple[Op, ...] = ()
    stream: str = "single"
    parallel: tuple[tuple[Op, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.merge not in MERGES:
            raise SkipwayError(f"unknown merge {self.merge!r}", "one of " + ", ".join(MERGES))
        if not re.fullmatch(r"single|pair|history|streams\(\d+\)", self.stream):
            raise SkipwayError(f"unknown stream {self.stream!r}", "single, pair, history or streams(n)")
        if any(op.kind == "weight" for op in self.shortcut):
            raise SkipwayError("a weight on the shortcut", "kind 'projection' for weights that stand on the shortcut")
        if any(op.kind == "projection" for ops in (self.branch, self.after, *self.parallel) for op in ops):
            raise SkipwayError("a projection off the shortcut", "kind 'weight' for weights in branch and after")
        if self.merge == "none" and (self.shortcut or self.parallel):
            raise SkipwayError("a shortcut with merge 'none'", "an empty shortcut, or a merge")
        if self.merge != "add" and self.parallel:
            raise SkipwayError(f"parallel branches with merge {self.merge!r}", "merge 'add'")

    @property
    def branch_start(self) -> tuple[Op, ...]:
        """Leading norms and activations of the branch: what happens before its first weight."""
        stop = next((i for i, op in enumerate(self.branch) if op.kind not in ("norm", "activation")), len(self.branch))
        return self.branch[:stop]

    @property
    def branch_end(self) -> tuple[Op, ...]:
        """Trailing norms, activations, scales, gates and dropouts of the branch: what follows its last weight."""
        count = 0
        while count < len(self.branch) and self.branch[-1 - count].kind in _TAIL:
            count += 1
        return self.branch[len(self.branch) - count :]

    @property
    def scale(self) -> float | str:
        """*s*: the product of the numbers at the end of the branch, or the name of a learned scale; 1.0 if none."""
        value = 1.0
        for op in self.branch_end:
            if op.kind != "scale":
                continue
            if isinstance(op.detail, str):
                return op.detail
            value *= op.detail
        return value

    def canonical(self) -> UnitForm:
        """The same function in one spelling.

        A mean of two is an addition with 0.5 on both sides; complementary gates are a lerp; neighbouring numbers are
        multiplied and ones dropped; dropout at probability 0 disappears.
        """
        shortcut, merge, branch = self.shortcut, self.merge, self.branch
        if merge == "mean":
            half = (Op("scale", 0.5),)
            shortcut, branch, merge = shortcut + half, branch + half, "add"
        shortcut, branch = _fold(shortcut), _fold(branch)
        if merge == "add" and shortcut and branch and not self.parallel:
            pair = (shortcut[-1], branch[-1])
            if {op.kind for op in pair} == {"gate"} and {op.detail for op in pair} == {"g", "1-g"}:
                shortcut, branch, merge = shortcut[:-1], branch[:-1], "lerp"
        parallel = tuple(sorted((_fold(p) for p in self.parallel), key=str))
        return replace(self, shortcut=shortcut, merge=merge, branch=branch, after=_fold(self.after), parallel=parallel)

    def equation(self) -> str:
        """The formula as text, e.g. ``x' = ReLU( x + BN·Conv3x3·ReLU·BN·Conv3x3(x) )``; `parse` reads it back."""
        terms = [term(ops) for ops in (self.branch, *self.parallel)]
        body = {
            "add": " + ".join([term(self.shortcut), *terms]),
            "multiply": f"{term(self.shortcut)} ⊙ {terms[0]}",
            "none": terms[0],
        }.get(self.merge, f"{self.merge}({term(self.shortcut)}, {terms[0]})")
        if self.after:
            body = f"{_chain(self.after)}( {body} )"
        stream = "" if self.stream == "single" else f"[{self.stream}] "
        return f"{stream}x' = {body}"

    __str__ = equation

    @classmethod
    def parse(cls, text: str) -> UnitForm:
        """Read an equation that `equation` printed.

        Raises:
            SkipwayError: the text is not such an equation.
        """
        head = _EQUATION.fullmatch(text)
        if head is None:
            raise SkipwayError(f"not an equation: {text!r}", 'for example "x\' = ReLU( x + BN·Conv3x3(x) )"')
        after = _read_chain(head["after"], "after") if head["after"] else ()
        stream = head["stream"] or "single"
        body: str = head["inner"] or head["bare"] or ""
        if call := re.fullmatch(r"(lerp|concat|mean)\((.*), (.*)\)", body):
            merge: Merge = call[1]  # type: ignore[assignment]  # the pattern admits these three names only
            sides = [call[2], call[3]]
        elif " ⊙ " in body:
            merge, sides = "multiply", body.split(" ⊙ ")
        elif " + " in body:
            merge, sides = "add", body.split(" + ")
        else:
            return cls(merge="none", branch=read_term(body, "branch"), after=after, stream=stream)
        first, *rest = sides
        branches = [read_term(side, "branch") for side in rest]
        return cls(
            shortcut=read_term(first, "shortcut"), merge=merge, branch=branches[0], parallel=tuple(branches[1:]),
            after=after, stream=stream,
        )  # fmt: skip


def _fold(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Multiply neighbouring numbers, drop ones and dropout at probability 0."""
    out: list[Op] = []
    for op in ops:
        if op.kind in ("dropout", "drop_path") and op.detail == 0.0:
            continue
        if op.is_number and out and out[-1].is_number:
            op = Op("scale", float(op.detail) * float(out.pop().detail))  # noqa: PLW2901  # the folded pair goes on
        if op.is_number and op.detail == 1.0:
            continue
        out.append(op)
    return tuple(out)


def _chain(ops: tuple[Op, ...]) -> str:
    return "·".join(str(op) for op in reversed(ops))


def term(ops: tuple[Op, ...]) -> str:
    """Operations in order of execution as a term of an equation: ``BN·Conv3x3(x)``, ``0.5·x``, ``x`` for none."""
    if not ops:
        return "x"
    multiplies = ops[0].kind in ("scale", "gate")
    return _chain(ops) + ("·x" if multiplies else "(x)")


def read_term(text: str, place: str) -> tuple[Op, ...]:
    """The operations of a term that `term` printed.

    Args:
        text: the term.
        place: ``"shortcut"``, where weights are projections, ``"branch"`` or ``"after"``.

    Raises:
        SkipwayError: the text is no such term.
    """
    if text == "x":
        return ()
    for end in ("(x)", "·x"):
        if text.endswith(end):
            return _read_chain(text.removesuffix(end), place)
    raise SkipwayError(f"not a term of an equation: {text!r}", "'x', 'BN·Conv3x3(x)' or '0.5·x'")


def _read_chain(text: str, place: str) -> tuple[Op, ...]:
    return tuple(_read_op(token, place) for token in reversed(text.split("·")))


def _read_op(token: str, place: str) -> Op:
    weights = "projection" if place == "shortcut" else "weight"
    for (kind, detail), fixed in _FIXED.items():
        if token == fixed and kind not in {"projection", "weight"} - {weights}:
            return Op(kind, detail)
    for (kind, prefix), text in sorted(_PREFIXED.items(), key=lambda item: -len(item[1])):
        window = token.removeprefix(text)
        if token.startswith(text) and _WINDOW.fullmatch(window) and kind not in {"projection", "weight"} - {weights}:
            return Op(kind, prefix + window)
    if generic := _GENERIC.fullmatch(token):
        return Op(generic["kind"], _number(generic["detail"]) if generic["kind"] in _NUMERIC else generic["detail"])
    value = _number(token)
    if isinstance(value, float):
        return Op("scale", value)
    raise SkipwayError(f"unknown operation {token!r} in an equation", "for example BN, ReLU, Conv3x3/2, 0.5, λ")


_NUMERIC: Final = frozenset({"dropout", "drop_path"})


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
