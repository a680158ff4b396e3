"""Units as a road: folded and one by one, branches named by letter, obstacles listed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import count, product
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final

from skipway.form import Op, UnitForm
from skipway.parts import Obstacle, StreamMap, Stretch
from skipway.report.folding import fold, folded_label

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from skipway.diagnostics.layer import Layer
    from skipway.units.passage import Passage
    from skipway.units.unit import StreamNumbers, Unit

__all__ = ["branch_share", "layer_map", "stream_map"]

# A shortcut longer than this is named by letter too, so that the line stays readable.
LONGEST_SHORTCUT: Final = 18
# Stem and head have the line of input and output to themselves.
LONGEST_END: Final = 34
_TAIL: Final = frozenset({"scale", "gate", "dropout", "drop_path"})
_LONG_NUMBER: Final = re.compile(r"\d+\.\d{5,}(?:e[+-]?\d+)?")


def stream_map(units: Sequence[Unit], *, stem: Passage | None = None, head: Passage | None = None) -> StreamMap:
    """Fold the units of a model into stretches of road.

    Units that follow each other are one stretch when form, shape, kind and level are equal; patterns of several units
    (attention, MLP, attention, MLP …) fold too. What stands between two units is a stretch of its own. The map holds
    the unfolded road as well.
    """
    letters = _Letters()
    road: list[Unit | _Between] = []
    for unit in units:
        if unit.before is not None:
            road.append(_Between(unit.before, unit.level))
        road.append(unit)
    stretches = [
        _along([road[i] for i in run.members(offset)], (offset, run.period), letters)
        for run in fold([_key(piece) for piece in road])
        for offset in range(run.period)
    ]
    single = tuple(_along([piece], (0, 1), letters) for piece in road)
    before, behind = (None if end is None else _outside([end], 0, (0, 1), letters, LONGEST_END) for end in (stem, head))
    return StreamMap(
        stretches=tuple(stretches), units=single, stem=before, head=behind, branches=tuple(letters.named.items())
    )


@dataclass(frozen=True, slots=True)
class _Between:
    """What stands between two units, and how deep it lies."""

    passage: Passage
    level: int


def _key(piece: Unit | _Between) -> Hashable:
    """What pieces of road that are alike have in common."""
    if isinstance(piece, _Between):
        return piece.passage.ops, piece.passage.closed, piece.level
    return _without_rates(piece.form), _size(piece), piece.kind, piece.level, piece.closed


def _along(pieces: Sequence[Unit | _Between], place: tuple[int, int], letters: _Letters) -> Stretch:
    """One stretch of pieces that are alike."""
    between = [piece for piece in pieces if isinstance(piece, _Between)]
    if not between:
        return _stretch([piece for piece in pieces if not isinstance(piece, _Between)], place, letters)
    return _outside([b.passage for b in between], between[0].level, place, letters, LONGEST_SHORTCUT)


def _outside(
    passages: Sequence[Passage], level: int, place: tuple[int, int], letters: _Letters, longest: int
) -> Stretch:
    """Passages that are alike; longer ones than `longest` are named by letter."""
    places = [folded_label(p.path.split(" … ")) for p in passages]
    return Stretch(
        label=folded_label(places), count=len(passages), place=place, level=level, kind="between",
        equation=letters.passage(passages[0], longest), after=_by_kind(passages[0].ops), proved=False,
    )  # fmt: skip


def _by_kind(ops: tuple[Op, ...]) -> tuple[Obstacle, ...]:
    """One sign for each kind of operation, in order of appearance: a block that stands on the road has many."""
    named: dict[str, list[str]] = {}
    for op in ops:
        named.setdefault(op.kind, []).append(_readable(str(op)))
    return tuple(Obstacle(kind, ", ".join(names)) for kind, names in named.items())


def layer_map(layers: Sequence[Layer]) -> StreamMap:
    """The road of a net without units: every weighted layer stands on it, nothing leads around.

    Layers that follow each other under one parent module fold.
    """
    single = tuple(_layer(layer) for layer in layers)
    runs = fold([layer.path.rpartition(".")[0] for layer in layers])
    stretches = [
        replace(
            single[run.start], count=len(members),
            label=folded_label([single[i].label for i in members]),
            stream_rms=_ends([layers[i].rms for i in members]), grad=_ends([layers[i].grad for i in members]),
        )
        for run in runs
        for members in [range(run.start, run.start + run.period * run.count)]
    ]  # fmt: skip
    return StreamMap(stretches=tuple(stretches), units=single)


def _layer(layer: Layer) -> Stretch:
    return Stretch(
        label=layer.path or "(model)", kind="layer", equation="W(x)", after=(Obstacle("weight", "W"),), proved=False,
        stream_rms=_ends([layer.rms]), grad=_ends([layer.grad]),
    )  # fmt: skip


def branch_share(numbers: StreamNumbers) -> float | None:
    """``rms(branch) / (rms(shortcut) + rms(branch))``, dimensionless; None where one of them was not measured."""
    branch, shortcut = numbers.branch_rms, numbers.shortcut_rms
    if branch is None or shortcut is None or branch + shortcut == 0:
        return None
    return branch / (branch + shortcut)


def _size(unit: Unit) -> tuple[int, ...]:
    """The shape that units alike have in common; the width of a concatenation grows with every unit."""
    if unit.form.merge != "concat":
        return unit.shape
    return unit.shape[2:] if len(unit.shape) > 3 else unit.shape[:-1]


def _stretch(units: Sequence[Unit], place: tuple[int, int], letters: _Letters) -> Stretch:
    unit = units[0]
    form = unit.form if len({u.form for u in units}) == 1 else _without_rates(unit.form)
    measured = [u.numbers for u in units]
    shares = [branch_share(n) for n in measured]
    return Stretch(
        label=folded_label([u.path or "(model)" for u in units]),
        count=len(units),
        place=place,
        level=unit.level,
        kind=unit.kind,
        equation=letters.equation(form),
        shortcut=_obstacles(form.shortcut) + _merge_obstacle(form),
        after=_obstacles(form.after),
        proved=all(u.proof_error is not None for u in units),
        shape=unit.shape,
        stream_rms=_ends([n.stream_rms for n in measured]),
        branch_share=_ends(shares),
        cosine=_ends([n.cosine for n in measured]),
        similarity=_ends([n.similarity for n in measured]),
        grad=_ends([n.grad_stream for n in measured]),
    )


def _without_rates(form: UnitForm) -> UnitForm:
    """A form without the probabilities of its drop-path, which grow with depth in units that are alike."""

    def stripped(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(Op("drop_path") if op.kind == "drop_path" else op for op in ops)

    return replace(form, branch=stripped(form.branch), parallel=tuple(stripped(p) for p in form.parallel))


def _obstacles(ops: tuple[Op, ...]) -> tuple[Obstacle, ...]:
    return tuple(Obstacle(op.kind, _readable(str(op))) for op in ops)


def _merge_obstacle(form: UnitForm) -> tuple[Obstacle, ...]:
    """A merge that scales the shortcut stands on the road, though no operation is listed there."""
    return {
        "lerp": (Obstacle("gate", "(1-g)"),), "mean": (Obstacle("scale", "0.5"),), "multiply": (Obstacle("gate", "F"),),
    }.get(form.merge, ())  # fmt: skip


def _ends(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [v for v in values if v is not None]
    return (known[0], known[-1]) if known else None


def _readable(text: str) -> str:
    """Numbers to four digits; brackets that hold nothing say nothing: dropout of unknown probability is ``dropout``."""
    return _LONG_NUMBER.sub(_rounded, text.replace("[]", ""))


def _rounded(number: re.Match[str]) -> str:
    rounded = f"{float(number[0]):.4g}"
    return number[0] if rounded == "1" else rounded  # a factor that is nearly one is the point of it


class _Letters:
    """Names branches A, B, C … in order of appearance, one letter a function."""

    def __init__(self) -> None:
        self.named: dict[str, str] = {}
        self._by_text: dict[str, str] = {}
        self._next = self._names()

    @staticmethod
    def _names() -> Iterator[str]:
        for length in count(1):
            yield from ("".join(letters) for letters in product(ascii_uppercase, repeat=length))

    def name(self, ops: tuple[Op, ...]) -> str:
        text = "·".join(str(op) for op in reversed(ops))
        if text not in self._by_text:
            self._by_text[text] = next(self._next)
            self.named[self._by_text[text]] = _readable(text)
        return self._by_text[text]

    def passage(self, passage: Passage, longest: int) -> str:
        """What stands outside of units, by letter where it is long."""
        if len(passage.equation()) <= longest:
            return _readable(passage.equation())
        return f"{self.name(passage.ops)}(x{'' if passage.closed else ', …'})"

    def equation(self, form: UnitForm) -> str:
        """The equation with every branch by letter; scales, gates and dropout at its end stay visible."""
        stands_for: dict[str, str] = {}

        def short(ops: tuple[Op, ...], kind: str) -> tuple[Op, ...]:
            cut = len(ops)
            while cut and ops[cut - 1].kind in _TAIL:
                cut -= 1
            if not cut:
                return ops
            letter = self.name(ops[:cut])
            stands_for[f"{kind}[{letter}]"] = letter
            return (Op(kind, letter), *ops[cut:])

        shortcut = form.shortcut
        if len("·".join(str(op) for op in shortcut)) > LONGEST_SHORTCUT:
            shortcut = short(shortcut, "projection")
        text = replace(
            form, shortcut=shortcut, branch=short(form.branch, "weight"),
            parallel=tuple(short(p, "weight") for p in form.parallel),
        ).equation()  # fmt: skip
        for token, letter in stands_for.items():
            text = text.replace(token, letter)
        return _readable(text.removeprefix("x' = "))
