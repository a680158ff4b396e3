"""The stream map in a terminal: the road down the left edge, a line for every stretch."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text as RichText

from skipway.parts import OBSTACLES, StreamMap, Stretch
from skipway.report.numbers import cosine, percent, span

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SIGNS", "road"]

# What stands on the road, each with its sign; the road itself is a plain line.
SIGNS: Final = {
    "activation": "▽", "norm": "◇", "projection": "▣", "weight": "■", "scale": "×", "gate": "◐", "dropout": "░",
    "drop_path": "▒", "pool": "▾", "pad": "+", "slice": "÷",
}  # fmt: skip
ROAD: Final = "│"
LONGEST_LABEL: Final = 30
SHORTEST_LABEL: Final = 20
DRAWN_LEVELS: Final = 3
FULL_WIDTH: Final = 100
LONGEST_CHAIN: Final = 24
LEGEND_WIDTH: Final = 96
_MEANING: Final = (
    "rms: stream · share: branch in branch + shortcut, rms · cos: between the two · grad: |∂loss/∂stream|\n"
    "alike: mean cosine between tokens (images: channels) behind the unit"
)
_COLUMNS: Final = ("rms", "share", "cos", "alike", "grad")


def road(part: StreamMap) -> RenderableType:
    """The road from input to output, its legend, and the branches by letter."""
    measured = any(s.stream_rms or s.grad or s.branch_share for s in part.stretches)
    doubts = any(s.proved for s in part.stretches)  # where nothing is proved, the header says so once
    brackets = any(s.place[1] > 1 for s in part.stretches)
    table = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("", no_wrap=True, justify="right")
    table.add_column("x' =", overflow="fold")
    for name in _COLUMNS if measured else ():
        table.add_column(name, no_wrap=True, justify="right")
    numbers = _numbers if measured else _no_numbers
    rows: list[list[RichText | str]] = [
        [
            _gutter(s),
            s.label,
            _count(s, brackets=brackets),
            _equation(s, doubts=doubts),
            *numbers(s),
        ]
        for s in part.stretches
    ]
    width = len(table.columns)
    first, last = _end("input", part.stem, width), _end("output", part.head, width)
    limit = _label_limit([first, *rows, last])
    table.add_row(*first)
    for gutter, label, count, *rest in rows:
        table.add_row(gutter, RichText(_middle(str(label), limit)), count, *rest)
    table.add_row(*last)
    return Group(table, *_branches(part), *_legend(part, measured=measured))


def _end(name: str, outside: Stretch | None, width: int) -> list[RichText | str]:
    """The line of input or output, with what stands there: on everybody's road something does, and it shines less."""
    signs = ROAD if outside is None else "".join(SIGNS[o.kind] for o in outside.after)
    cells: list[RichText | str] = [
        RichText(signs, "" if outside is None else "dim"), RichText(name, "dim"), "",
        RichText("" if outside is None else outside.equation, "dim"),
    ]  # fmt: skip
    return [*cells, *[""] * (width - len(cells))]


def _label_limit(rows: Sequence[Sequence[RichText | str]]) -> int:
    """How long a label may be, so that equation and numbers keep their line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    others = sum(widths) - widths[1] + len(widths)
    return max(SHORTEST_LABEL, min(LONGEST_LABEL, FULL_WIDTH - others))


def _count(stretch: Stretch, *, brackets: bool) -> str:
    """How often, and by a bracket which lines repeat together."""
    if stretch.count == 1:
        return ""
    at, length = stretch.place
    bracket = " " if length == 1 else "┐" if at == 0 else "┘" if at == length - 1 else "┤"
    return f"×{stretch.count}{bracket if brackets else ''}"


def _numbers(stretch: Stretch) -> tuple[str, ...]:
    """In the order of `_COLUMNS`; between two units nothing is measured that does not stand at the next one."""
    if stretch.kind == "between":
        return ("",) * len(_COLUMNS)
    return (
        span(stretch.stream_rms), percent(stretch.branch_share), cosine(stretch.cosine), cosine(stretch.similarity),
        span(stretch.grad),
    )  # fmt: skip


def _no_numbers(_stretch: Stretch) -> tuple[str, ...]:
    return ()


def _gutter(stretch: Stretch) -> RichText:
    level = stretch.level
    inside = f"{ROAD} " * level if level <= DRAWN_LEVELS else f"{ROAD}×{level} "
    if stretch.clean:
        return RichText.assemble(inside, (ROAD, "green"))
    signs = "".join(SIGNS[o.kind] for o in (*stretch.shortcut, *stretch.after))
    return RichText.assemble(inside, (signs, "yellow"))


def _equation(stretch: Stretch, *, doubts: bool) -> RichText:
    text = RichText(stretch.equation)
    if stretch.kind == "between":
        text.stylize("yellow")
        return text
    if stretch.kind != "unit":
        text.append(f"  ({stretch.kind.replace('_', ' ')})", "cyan")
    if doubts and not stretch.proved:
        text.append("  unproved", "red")
    return text


def _middle(label: str, limit: int) -> str:
    """A long module path loses names from its middle or its front; its end is what tells units apart."""
    names = label.split(".")
    shorter = [
        ".".join([*names[:front], "…", *names[len(names) - (kept - front) :]])
        for kept in range(len(names) - 1, 0, -1)
        for front in ((0, 1) if kept > 1 else (0,))
    ]
    fitting = (text for text in (label, *shorter) if len(text) <= limit)
    return next(fitting, f"…{label[1 - limit :]}")


def _cut(chain: str) -> str:
    """A branch that holds a whole network shows its two ends; the JSON report has all of it."""
    ops = chain.split("·")
    if len(ops) <= LONGEST_CHAIN:
        return chain
    keep = LONGEST_CHAIN // 3
    return "·".join([*ops[:keep], f"…({len(ops) - 2 * keep} operations)…", *ops[-keep:]])


def _branches(part: StreamMap) -> list[RichText]:
    lines = []
    for letter, whole in part.branches:
        chain = _cut(whole)
        # Broken behind dots, so that no operation is torn apart.
        wrapped = textwrap.wrap(chain.replace("·", "· "), LEGEND_WIDTH - len(letter) - 3, break_on_hyphens=False)
        indent = " " * (len(letter) + 3)
        lines.append(RichText(f"{letter} = " + f"\n{indent}".join(line.replace("· ", "·") for line in wrapped)))
    return lines


def _legend(part: StreamMap, *, measured: bool) -> list[RichText]:
    pieces = [*part.stretches, *(end for end in (part.stem, part.head) if end is not None)]
    present = {o.kind for s in pieces for o in (*s.shortcut, *s.after)}
    signs = [f"{ROAD} clean"] if any(s.clean for s in part.stretches) else []
    signs += [f"{SIGNS[kind]} {kind.replace('_', '-')}" for kind in OBSTACLES if kind in present]
    lines = [RichText("road: " + " · ".join(signs), style="dim")]
    if measured:
        lines.append(RichText(_MEANING, style="dim"))
    return lines
