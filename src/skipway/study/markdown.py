"""Lowering to Markdown: the parts that documentation is made of."""

from __future__ import annotations

import re
from functools import singledispatch
from typing import TYPE_CHECKING

from skipway.parts import Section, Table, Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipway.parts import Part

__all__ = ["escaped", "to_markdown"]


def to_markdown(parts: Iterable[Part], *, level: int = 1) -> str:
    """Texts, tables and sections as Markdown; a line break in a text begins a line.

    Args:
        parts: the page.
        level: of the headings of its sections, and of texts that are titles.
    """
    return "\n\n".join(lowered(part, level) for part in parts)


@singledispatch
def lowered(part: object, _level: int) -> str:
    """One part as Markdown."""
    raise TypeError(f"no Markdown form for {type(part).__name__}")


@lowered.register
def _(part: Text, level: int) -> str:
    if part.tone == "title":
        return f"{'#' * level} {escaped(part.text)}"
    return "\\\n".join(escaped(line) for line in part.text.split("\n"))


@lowered.register
def _(part: Section, level: int) -> str:
    note = [escaped(part.note)] if part.note else []
    head = f"{'#' * level} {escaped(part.title)}"
    return "\n\n".join([head, *note, *(lowered(inside, level + 1) for inside in part.parts)])


@lowered.register
def _(part: Table, _level: int) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(escaped(cell).replace("|", r"\|") for cell in cells) + " |"

    rule = "|" + "|".join(" ---: " if column in part.numeric else " --- " for column in part.columns) + "|"
    title = [f"**{escaped(part.title)}**"] if part.title else []
    note = [escaped(part.note)] if part.note else []
    return "\n\n".join([*title, "\n".join([line(part.columns), rule, *map(line, part.rows)]), *note])


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    # An underscore inside a word is one; at a word's edge it would begin emphasis.
    return re.sub(r"[\\*`<\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text.replace("&", "&amp;"))
