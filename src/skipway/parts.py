"""The report vocabulary: a report is a tree of these parts, and every output format is a lowering of the tree.

Parts are frozen and hold plain values only; there are no tensors and no torch here. `skipway.report` lowers them to the
terminal, to one HTML file and to JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized

__all__ = [
    "OBSTACLES", "FindingPart", "Heatmap", "Lines", "Obstacle", "Part", "Section", "Series", "Skipped", "StreamMap",
    "Stretch", "Table", "Text", "Tone",
]  # fmt: skip

Tone = Literal["plain", "title", "good", "warning", "bad", "muted"]
# What may stand on the road of the stream: `skipway.form.KINDS`, in the order in which a legend names them.
OBSTACLES: Final = (
    "activation", "norm", "projection", "weight", "scale", "gate", "dropout", "drop_path", "pool", "pad", "slice",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A paragraph.

    Args:
        text: the words; a line break is kept.
        tone: how it is meant, not how it looks.
    """

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under named columns.

    Args:
        columns: headings.
        rows: cells as text, each row as long as `columns`.
        title: heading of the whole; empty for none.
        numeric: names of the columns that are aligned right.
        note: what to look for, in a sentence or two.

    Raises:
        SkipwayError: a row is longer or shorter than the headings.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    numeric: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise SkipwayError(
                    f"a row of {len(row)} cells", f"{len(self.columns)} cells: {', '.join(self.columns)}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve.

    Args:
        name: of the curve, as the legend shows it.
        y: values; None where nothing was measured.
        x: their places; None for 0, 1, 2 …
        low, high: the band around the curve, e.g. the smallest and largest of several seeds; None for no band.
        labels: what each point is, e.g. the path of a unit, shown when a reader points at it; None for the place alone.

    Raises:
        SkipwayError: places, band or labels of another length than the values.
    """

    name: str
    y: tuple[float | None, ...]
    x: tuple[float, ...] | None = None
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        given: tuple[tuple[str, Sized | None], ...] = (
            ("x", self.x), ("low", self.low), ("high", self.high), ("labels", self.labels),
        )  # fmt: skip
        for what, values in given:
            if values is not None and len(values) != len(self.y):
                raise SkipwayError(f"{self.name}: {len(values)} values of {what}", f"{len(self.y)}, as of y")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Curves over one axis.

    Args:
        series: the curves.
        x: what the axis counts, e.g. ``"unit"``.
        unit: unit of the values; empty means dimensionless.
        log, log_x: whether the values, and their places, are to be read on a logarithmic scale.
        title: heading; empty for none.
        note: what to look for, in a sentence or two.
    """

    series: tuple[Series, ...]
    x: str = "unit"
    unit: str = ""
    log: bool = False
    log_x: bool = False
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap:
    """A matrix of numbers shown as shades.

    Args:
        values: rows of numbers, top row first; None where nothing was measured.
        rows: what the rows are, one name each.
        columns: what the columns are, in words, e.g. ``"sample"``.
        title: heading; empty for none.
        note: what to look for, in a sentence or two.

    Raises:
        SkipwayError: rows of different lengths, or not one name for each.
    """

    values: tuple[tuple[float | None, ...], ...]
    rows: tuple[str, ...]
    columns: str = ""
    title: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.values):
            raise SkipwayError(f"{len(self.values)} rows with {len(self.rows)} names", "one name for each row")
        if len({len(row) for row in self.values}) > 1:
            raise SkipwayError("rows of different lengths", "a rectangular matrix")


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that stands on the road of the stream: its kind (one of `OBSTACLES`) and its name in an equation."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of the road: one unit, or several alike.

    Args:
        label: where it is, e.g. ``"layer1.1…2"``.
        count: how many units it stands for.
        place: position in a pattern that repeats as a whole (attention, MLP, attention, MLP …), and its length.
        level: 0 on the main stream, 1 and more inside a branch.
        kind: kind of the unit; ``"layer"`` for a weighted layer of a net without units, ``"between"`` for what stands
            on the stream outside of its units; these have no branch.
        equation: the unit in one line, its branch by letter.
        shortcut: what stands on the shortcut, in order.
        after: what stands on the stream behind the merge, in order.
        proved: whether every unit of the stretch carries a proof.
        shape: shape of the stream behind the first unit; empty where it is not known.
        stream_rms, branch_share, cosine, similarity, grad: first and last value over the stretch, None where not
            measured; `branch_share` is rms(branch) / (rms(shortcut) + rms(branch)), dimensionless; `similarity` is the
            mean cosine between tokens (channels of an image) behind the unit.
    """

    label: str
    count: int = 1
    place: tuple[int, int] = (0, 1)
    level: int = 0
    kind: str = "unit"
    equation: str = ""
    shortcut: tuple[Obstacle, ...] = ()
    after: tuple[Obstacle, ...] = ()
    proved: bool = True
    shape: tuple[int, ...] = ()
    stream_rms: tuple[float, float] | None = None
    branch_share: tuple[float, float] | None = None
    cosine: tuple[float, float] | None = None
    similarity: tuple[float, float] | None = None
    grad: tuple[float, float] | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing stands on the road."""
        return not self.shortcut and not self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMap:
    """The network as one road from input to output.

    Args:
        stretches: the road, from input to output, units alike folded.
        units: the same road unfolded, one stretch for every unit and for whatever stands between two; empty where
            nobody needs it.
        stem, head: what stands before the first unit and behind the last; None where nothing does.
        branches: the branches by letter, as the equations of the stretches name them.
        title: heading; empty for none.
        note: what to look for, in a sentence or two.
    """

    stretches: tuple[Stretch, ...]
    units: tuple[Stretch, ...] = ()
    stem: Stretch | None = None
    head: Stretch | None = None
    branches: tuple[tuple[str, str], ...] = ()
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingPart:
    """One verdict: which rule, how grave, where, by what evidence, and what mends it.

    Args:
        cause: id of the rule that explains it, under whose finding it is folded; empty if none does.
        figures: the evidence drawn, for reports that have figures.
    """

    rule: str
    severity: str
    path: str
    message: str
    evidence: Mapping[str, float | int | str] = field(default_factory=dict)
    fix: str = ""
    source: str = ""
    cause: str = ""
    figures: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Something that was not looked at, and why."""

    what: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Parts under one heading.

    Args:
        title: the heading.
        parts: what stands under it.
        note: what to look for, in a sentence or two.
    """

    title: str
    parts: tuple[Part, ...]
    note: str = ""


Part = Text | Table | Lines | Heatmap | StreamMap | FindingPart | Skipped | Section
