"""An inspection as a tree of parts: what a person is told, and in which order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from skipway.parts import FindingPart, Part, Section, Skipped, StreamMap, Text
from skipway.report.evidence import drawn
from skipway.report.numbers import bytes_text, count_text, counted, short
from skipway.report.paths import paths_section
from skipway.report.profile import stream_profiles
from skipway.report.road import layer_map, stream_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.diagnostics.inspection import Inspection
    from skipway.units.unit import Unexplained

__all__ = ["inspection_parts", "inspection_report", "signal_map"]

MOST_UNEXPLAINED: Final = 5
LINE: Final = 100
WHAT_TO_LOOK_FOR: Final = (
    "Yellow signs. On a clean road x reaches the output unchanged but for what the branches add, and so does the "
    "gradient on its way back. Every sign is something that each signal has to pass."
)
NO_WAY_AROUND: Final = (
    "Every weight stands on the road and nothing leads around it: signal and gradient are multiplied by each of them."
)


def inspection_parts(inspection: Inspection) -> tuple[Part, ...]:
    """The parts of a report on one model: header, road, slopes, what is not known, findings last."""
    parts: list[Part] = [Text(text=f"skipway · {inspection.model}", tone="title"), *_header(inspection)]
    if inspection.units:
        parts.append(stream_map(inspection.units, stem=inspection.stem, head=inspection.head))
        parts.extend(_slopes(inspection))
    if inspection.paths is not None:
        parts.append(paths_section(inspection.paths, charts=False))
    parts.extend(_unexplained(inspection.unexplained))
    parts.extend(Skipped(what=note) for note in inspection.notes)
    parts.extend(_findings(inspection))
    return tuple(parts)


def inspection_report(inspection: Inspection) -> tuple[Part, ...]:
    """The parts of a report with figures: header and findings, road, the signal by depth, what is not known."""
    parts: list[Part] = [Text(text=f"skipway · {inspection.model}", tone="title"), *_header(inspection)]
    found = tuple(_findings(inspection, figures=True))
    parts.extend([Section(title="Findings", parts=found)] if inspection.findings else found)
    road = signal_map(inspection)
    if road is not None:
        parts.append(Section(title="The stream", parts=(road,)))
    profiles = stream_profiles({inspection.model: inspection})
    if profiles:
        parts.append(Section(title="The signal by depth", parts=(*profiles, *_slopes(inspection))))
    if inspection.paths is not None:
        parts.append(paths_section(inspection.paths, charts=True))
    unknown = (*_unexplained(inspection.unexplained), *(Skipped(what=note) for note in inspection.notes))
    if unknown:
        parts.append(Section(title="What was not looked at", parts=unknown))
    return tuple(parts)


def signal_map(inspection: Inspection, *, title: str = "") -> StreamMap | None:
    """The road of an inspected model: its units, or its weighted layers where it has fewer than two units.

    None where neither is known.
    """
    if len(inspection.units) < 2 and inspection.layers:
        return replace(layer_map(inspection.layers), title=title, note=NO_WAY_AROUND)
    if inspection.units:
        road = stream_map(inspection.units, stem=inspection.stem, head=inspection.head)
        return replace(road, title=title, note=WHAT_TO_LOOK_FOR)
    return None


def _header(inspection: Inspection) -> list[Part]:
    totals = inspection.totals
    flops = count_text(totals.get("flops", 0))
    facts = [
        text
        for key, text in (
            ("parameters", f"{count_text(totals.get('parameters', 0))} parameters"),
            ("flops", f"{flops} FLOP forward" if flops[-1].isdigit() else f"{flops}FLOP forward"),
            ("activation_bytes", f"{bytes_text(totals.get('activation_bytes', 0))} of activations"),
        )
        if key in totals
    ]
    runs = sum(inspection.runs.values())
    ran = [counted(runs, "forward run")] if runs else []
    how = [
        f"{inspection.mode} mode", f"batch {inspection.batch}", f"loss: {inspection.loss}",
        f"profile {inspection.profile}", *ran, f"{inspection.seconds:.1f} s",
    ]  # fmt: skip
    found = _found(inspection)
    return [found, Text(text=_packed([*facts, *how]), tone="muted")]


def _packed(pieces: Sequence[str]) -> str:
    """Pieces joined by dots, a line broken between two and never inside one."""
    lines = [pieces[0]]
    for piece in pieces[1:]:
        joined = f"{lines[-1]} · {piece}"
        if len(joined) > LINE:
            lines.append(piece)
        else:
            lines[-1] = joined
    return "\n".join(lines)


def _found(inspection: Inspection) -> Text:
    units = inspection.units
    if not units:
        return Text(
            text="NO RESIDUAL UNITS FOUND: no place in this run joins a stream with a branch of its own.", tone="bad"
        )
    errors = [u.proof_error for u in units if u.proof_error is not None]
    plain = [u for u in units if u.kind == "unit"]
    kinds = [counted(len(plain), "residual unit")] if plain else []
    for kind in ("long_skip", "injection", "cell", "merge"):
        count = sum(u.kind == kind for u in units)
        if count:
            kinds.append(counted(count, kind.replace("_", " ")))
    found = ", ".join(kinds)
    if not errors:
        return Text(text=f"{found}, none proved", tone="warning")
    proved = "each proved" if len(errors) == len(units) else f"{len(errors)} of {len(units)} proved"
    worst = f"worst proof error {short(max(errors))} eps"
    return Text(text=f"{found}, {proved} ({worst})", tone="good" if len(errors) == len(units) else "warning")


def _slopes(inspection: Inspection) -> list[Part]:
    words = []
    slopes = inspection.slopes
    if (rms := slopes.get("stream_rms")) is not None:
        words.append(f"stream rms ×{short(_exp(rms))}")
    if (grad := slopes.get("grad_stream")) is not None:
        words.append(f"gradient ×{short(_exp(grad))} (backwards, last unit to first)")
    if (similarity := slopes.get("similarity")) is not None:
        words.append(f"similarity {similarity:+.4f}")
    words.extend(
        f"{name.replace('_', ' ')} {value:+.4f}"
        for name, value in slopes.items()
        if name not in ("stream_rms", "grad_stream", "similarity")
    )
    return [Text(text="per unit: " + ", ".join(words))] if words else []


def _exp(slope: float) -> float:
    try:
        return math.exp(slope)
    except OverflowError:
        return math.inf


def _unexplained(joins: Sequence[Unexplained]) -> list[Part]:
    """Joins that are not reported as units, those with one reason together."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for join in joins:
        by_reason.setdefault((join.op, join.reason), []).append(join.path)
    parts: list[Part] = []
    for (op, reason), paths in list(by_reason.items())[:MOST_UNEXPLAINED]:
        where = paths[0] if len(paths) == 1 else f"{paths[0]} … {paths[-1]} ×{len(paths)}"
        parts.append(Skipped(what=f"join not explained: {op} in {where}", why=reason))
    left = sum(len(paths) for paths in list(by_reason.values())[MOST_UNEXPLAINED:])
    if left:
        parts.append(Skipped(what=f"{left} more joins not explained", why="the JSON report lists all"))
    return parts


def _findings(inspection: Inspection, *, figures: bool = False) -> list[Part]:
    if not inspection.findings:
        return [Text(text="no findings", tone="good")]
    return [
        FindingPart(
            rule=f.rule, severity=f.severity, path=f.path, message=f.message, evidence=dict(f.evidence), fix=f.fix,
            source=f.source, cause=f.cause, figures=drawn(f, inspection) if figures and not f.cause else (),
        )
        for f in inspection.findings
    ]  # fmt: skip
