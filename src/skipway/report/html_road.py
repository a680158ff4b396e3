"""The stream map in HTML: what it says in words, its legend, its data for the script that draws it, and a table."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from skipway.parts import OBSTACLES
from skipway.report.escape import escaped, script_json
from skipway.report.html_table import table
from skipway.report.numbers import cosine, counted, percent, short, span
from skipway.report.road_signal import LEVELS, Signal, shade, signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.parts import Obstacle, StreamMap, Stretch

__all__ = ["road"]

_LETTER: Final = re.compile(r"(?:^|[ ·(])([A-Z]+)\(x[,)]")
_MEANING: Final = (
    "rms: of the stream. share: of the branch in branch + shortcut, rms. cosine: between the two. alike: mean cosine "
    "between tokens (images: channels) behind the unit. gradient: norm of that of the loss at the stream."
)
_COLUMNS: Final = ("on the road", "unit", "count", "x' =", "rms", "share", "cosine", "alike", "gradient")
_NUMERIC: Final = ("count", "rms", "share", "cosine", "alike", "gradient")


def road(part: StreamMap, name: str) -> str:
    """One map: three facts, the signs that stand on the road, the road itself, its reading glass, and the table.

    Args:
        part: the map; where it holds no single units, its stretches are drawn.
        name: id of the element, unique on the page.
    """
    pieces = part.units or part.stretches
    units = [piece for piece in pieces if piece.kind != "between"]
    if not units:
        return '<p class="legend">There is nothing on this road: no unit was found.</p>'
    seen, noun = signal(units), _noun(units)
    label = f"Stream map{': ' + part.title if part.title else ''}, {len(units)} {noun}s from input to output"
    return (
        f'<div class="map" id="{name}">{_facts(pieces, noun, seen)}{_signs(pieces)}'
        f'<div class="road" role="listbox" aria-label="{escaped(label)}" aria-describedby="{name}-keys"></div>'
        f'<div class="glass" aria-hidden="true"></div>{_legend(noun, seen)}'
        f'<p class="keys" id="{name}-keys">Point at a {noun}, or move along the road with the arrow keys; '
        "Home and End lead to its ends.</p>"
        f"{_as_table(part)}"
        f'<script type="application/json" class="data">{script_json(_data(part, pieces, seen))}</script></div>'
    )


def _noun(units: Sequence[Stretch]) -> str:
    return "layer" if all(u.kind == "layer" for u in units) else "unit"


def _facts(pieces: Sequence[Stretch], noun: str, seen: Signal) -> str:
    """What a person should see in three seconds, in words."""
    main = [p for p in pieces if p.level == 0 and p.kind != "between"]
    between = sum(p.count for p in pieces if p.level == 0 and p.kind == "between")
    clean = sum(u.clean for u in main)
    if noun == "layer":
        facts = [("bad", "No way around", f"{len(main)} weighted layers, each on the road")]
    elif clean == len(main) and between:
        where = f"between {len(main)} clean units have something standing on the road"
        facts = [("warning", counted(between, "place"), where)]
    elif clean == len(main):
        facts = [("good", "Clean road", f"nothing stands on it at any of {len(main)} units")]
    else:
        tone = "bad" if clean == 0 else "warning"
        more = f", and {counted(between, 'place')} between them" if between else ""
        facts = [(tone, f"{len(main) - clean} of {len(main)}", f"units have something standing on the road{more}")]
    if seen.rms_change is not None:
        facts.append(("signal", f"×{short(seen.rms_change)}", f"forward: stream rms, last {noun} against first"))
    if seen.grad_change is not None:
        level = shade(seen.grad_change)
        tone = "signal" if level is None else f"signal g{level}"
        facts.append((tone, f"×{short(seen.grad_change)}", f"backward: gradient, first {noun} against last"))
    return (
        '<div class="facts">'
        + "".join(
            f'<p class="fact {tone}"><b>{escaped(big)}</b> <span>{escaped(small)}</span></p>'
            for tone, big, small in facts
        )
        + "</div>"
    )


def _signs(pieces: Sequence[Stretch]) -> str:
    """The signs that stand on this road, and how often."""
    counts = dict.fromkeys(OBSTACLES, 0)
    for piece in pieces:
        for obstacle in (*piece.shortcut, *piece.after):
            counts[obstacle.kind] += 1
    shown = "".join(
        f'<li><svg class="sign" viewBox="0 0 24 24" aria-hidden="true"><use href="#sign-{kind}"/></svg>'
        f"{kind.replace('_', '-')} <b>×{count}</b></li>"
        for kind, count in counts.items()
        if count
    )
    return f'<ul class="signs" aria-label="Signs on the road">{shown}</ul>' if shown else ""


def _legend(noun: str, seen: Signal) -> str:
    """How width and colour are to be read."""
    if seen.rms is None and seen.grad is None:
        return '<p class="legend">The signal was not measured: the road is drawn grey and equally wide.</p>'
    swatches = "".join(f'<i class="g{level}"></i>' for level in range(-LEVELS, LEVELS + 1))
    shades = f'<span class="scale">÷10⁴{swatches}×10⁴</span>'
    width = f"width of the road: stream rms against {short(seen.rms)} at the first {noun}, log scale"
    keys = [
        f"gradient against {short(seen.grad)} at the last {noun} {shades}",
        f'{width} <span class="widths"><i></i><i></i><i></i></span>',
    ]
    if noun != "layer":
        keys.append('width of the arch: share of the branch <span class="arches"><i></i><i></i></span>')
    return '<div class="legend">' + "".join(f"<span>{key}</span>" for key in keys) + "</div>"


def _as_table(part: StreamMap) -> str:
    rows = [
        (
            ", ".join(o.name for o in (*s.shortcut, *s.after)) or "clean",
            s.label, str(s.count), s.equation, span(s.stream_rms), percent(s.branch_share), cosine(s.cosine),
            cosine(s.similarity), span(s.grad),
        )
        for s in (*_ends(part.stem, "input"), *part.stretches, *_ends(part.head, "output"))
    ]  # fmt: skip
    branches = "".join(f"<dt>{escaped(letter)}</dt><dd>{escaped(text)}</dd>" for letter, text in part.branches)
    named = f'<dl class="branches">{branches}</dl>' if branches else ""
    cells = table(_COLUMNS, rows, _NUMERIC, title="From input to output, units alike on one line")
    return f'<details><summary>The road as a table</summary>{cells}{named}<p class="keys">{_MEANING}</p></details>'


def _ends(outside: Stretch | None, name: str) -> list[Stretch]:
    return [] if outside is None else [replace(outside, label=name)]


def _data(part: StreamMap, pieces: Sequence[Stretch], seen: Signal) -> dict[str, Any]:
    """Pieces of road as short rows; what many have in common (form, shape) is listed once.

    What stands between two units has the shape of the stream before it, and the signal where the next unit reads it.
    """
    forms: dict[tuple[object, ...], int] = {}
    shapes: dict[str, int] = {}
    letters = dict(part.branches)
    rows: list[list[Any]] = []
    number = 0
    for piece, following in zip(pieces, [*pieces[1:], pieces[-1]], strict=True):
        between = piece.kind == "between"
        number += not between
        form = forms.setdefault((piece.equation, piece.shortcut, piece.after, piece.kind), len(forms))
        seen_before = between and bool(rows)
        shape = rows[-1][1] if seen_before else shapes.setdefault("×".join(map(str, piece.shape)), len(shapes))
        signal_at = following if between else piece
        rows.append([
            form, shape, piece.label, piece.level, int(piece.proved), seen.width(signal_at), seen.level(signal_at),
            None if piece.branch_share is None else round(piece.branch_share[0], 3),
            span(piece.stream_rms), percent(piece.branch_share), cosine(piece.cosine), cosine(piece.similarity),
            span(piece.grad), piece.count, number,
        ])  # fmt: skip
    return {
        "noun": _noun([p for p in pieces if p.kind != "between"]),
        "count": number,
        "ends": ["" if end is None else end.equation for end in (part.stem, part.head)],
        "forms": [
            {
                "equation": equation, "shortcut": _pairs(shortcut), "after": _pairs(after), "kind": kind,
                "letters": [found for found in _LETTER.findall(str(equation)) if found in letters],
            }
            for equation, shortcut, after, kind in forms
        ],
        "shapes": list(shapes),
        "branches": letters,
        "units": rows,
        "proofs": any(piece.proved for piece in pieces),
    }  # fmt: skip


def _pairs(obstacles: object) -> list[list[str]]:
    listed: Sequence[Obstacle] = obstacles  # type: ignore[assignment]  # what the key of `_data` holds there
    return [[o.kind, o.name] for o in listed]
