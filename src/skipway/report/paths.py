"""The gradient by path length as parts of a report: what it means in words, a table with bars, charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.parts import Lines, Part, Section, Series, Skipped, Table, Text
from skipway.report.numbers import blocks, counted, short

if TYPE_CHECKING:
    from skipway.diagnostics.path_spectrum.result import PathSpectrum, SampledLength

__all__ = ["paths_parts", "paths_report", "paths_section"]

BAR: Final = 14
_BARS: Final = "│ share ┊ paths"
_SAMPLED: Final = (
    "sampled: the mean norm by a single path with its standard error, and the share which that norm times the number "
    "of paths has, as if no two paths cancelled each other (arXiv 1605.06431)."
)
_OF_PATHS: Final = "┊"
# A length with less than this of the gradient and of the paths shares a line with its neighbours.
_NOTHING: Final = 5e-4
SHARES: Final = (
    "Where the curve of the gradient stands against that of the paths. If it stands to the left, short paths carry the "
    "gradient and the long ones, though many, hardly any; a part below zero works against the whole."
)
PER_PATH: Final = (
    "A curve that falls by the same factor at every step: each branch passed weakens the gradient by it. The exact "
    "curve lies below the sampled one where paths of one length cancel each other."
)


def paths_parts(spectrum: PathSpectrum) -> tuple[Part, ...]:
    """A result by itself, for the terminal."""
    return (*_header(spectrum), *_body(spectrum, charts=False))


def paths_report(spectrum: PathSpectrum) -> tuple[Part, ...]:
    """A result by itself, with charts."""
    return (*_header(spectrum), *_body(spectrum, charts=True))


def paths_section(spectrum: PathSpectrum, *, charts: bool) -> Section:
    """A result as a section of the report on its model."""
    return Section(title="The gradient by path length", parts=_body(spectrum, charts=charts))


def _header(spectrum: PathSpectrum) -> tuple[Part, ...]:
    how = f"{spectrum.mode} mode · batch {spectrum.batch} · loss: {spectrum.loss}\n{_where(spectrum)}"
    return (
        Text(text=f"skipway · {spectrum.model} · gradient by path length", tone="title"),
        Text(text=f"{how} · {spectrum.seconds:.1f} s", tone="muted"),
    )


def _body(spectrum: PathSpectrum, *, charts: bool) -> tuple[Part, ...]:
    """With charts, or with bars in the table instead."""
    drawn = _charts(spectrum) if charts else ()
    return (*_words(spectrum), *drawn, _table(spectrum, bars=not charts), *_notes(spectrum))


def _where(spectrum: PathSpectrum) -> str:
    of = {
        "stream": f"the stream that {spectrum.units[0]} reads", "input": "the input",
        "parameters": "all parameters that train",
    }[spectrum.of]  # fmt: skip
    return f"gradient with respect to {of}, through {counted(len(spectrum.units), 'unit')}"


# ---- words


def _words(spectrum: PathSpectrum) -> tuple[Part, ...]:
    return (_checks(spectrum), Text(text=_lengths(spectrum)), _road(spectrum))


def _checks(spectrum: PathSpectrum) -> Text:
    added, severed = _error(spectrum.sum_error), _error(spectrum.degree0_error)
    if spectrum.trusted:
        return Text(
            text=f"checks hold: the parts add up to the gradient (relative error {added}), and the part that passes no "
            f"branch is the gradient with all branches cut off ({severed}).",
            tone="good",
        )
    failed = []
    if not spectrum.sum_error <= spectrum.allowed:
        failed.append(f"the parts do not add up to the gradient (relative error {added})")
    if not spectrum.degree0_error <= spectrum.allowed:
        failed.append(f"the part that passes no branch is not the gradient with all branches cut off ({severed})")
    return Text(
        text=f"NOT TO BE TRUSTED: {' and '.join(failed)}; allowed is {_error(spectrum.allowed)}. "
        "Nothing below is a finding about the model.",
        tone="bad",
    )


def _error(value: float) -> str:
    return short(value) if value == 0 or not value < 0.0095 else f"{value:.0e}".replace("e-0", "e-")


def _lengths(spectrum: PathSpectrum) -> str:
    first, last = spectrum.carrying()
    units, most = len(spectrum.units), spectrum.max_length
    between = str(first) if first == last else f"{first} {'or' if last == first + 1 else 'to'} {last}"
    through = f"{first} or more" if last > most else between
    mean = f"{'at least ' * (spectrum.longer_share is not None)}{spectrum.mean_length:.1f}"
    text = f"90 % of the gradient comes by paths through {through} of {units} branch{'es' * (units != 1)} (mean {mean})"
    if last > most:
        return f"{text}; to tell longer ones apart, carry more than {most}."
    if not spectrum.chain or spectrum.of == "parameters":
        return f"{text}."
    return f"{text}; these are {_part(spectrum.path_share(first, last))} of the 2^{units} paths."


def _road(spectrum: PathSpectrum) -> Text:
    factor, units = spectrum.road_factor, len(spectrum.units)
    if spectrum.road == "unchanged":
        return Text(text="clean road: past all branches the gradient arrives unchanged.", tone="good")
    if spectrum.road == "scaled" and factor is not None:
        each = f", {abs(factor) ** (1 / units):.4g} at each of {units} units" if factor > 0 else ""
        return Text(text=f"scaled road: past all branches the gradient arrives × {factor:.4g}{each}.", tone="warning")
    if spectrum.road == "changed" and factor is not None:
        return Text(
            text="no clean road: past all branches the gradient is changed by what stands on the road; its norm "
            f"arrives × {short(factor)}.",
            tone="warning",
        )
    if spectrum.road == "none":
        return Text(text="no road: without passing a branch no gradient arrives.", tone="bad")
    return Text(text="what becomes of the gradient on the road was not seen.", tone="muted")


def _part(share: float) -> str:
    percent = 100 * share
    return f"{short(percent)} %" if percent < 99.95 else "all" if percent > 99.9995 else f"{percent:.3f} %"


def _notes(spectrum: PathSpectrum) -> tuple[Part, ...]:
    legend = (Text(text=_SAMPLED, tone="muted"),) if spectrum.sampled else ()
    return (*legend, *(Skipped(what=note) for note in spectrum.notes))


# ---- table


def _table(spectrum: PathSpectrum, *, bars: bool) -> Table:
    has_paths = spectrum.of != "parameters"
    of_paths = [spectrum.binomial(k) if has_paths else 0.0 for k in range(spectrum.max_length + 1)]
    longer = spectrum.longer_share
    top = max(*map(abs, spectrum.share), abs(longer or 0.0), *of_paths, 1e-300)
    sampled = {s.length: s for s in spectrum.sampled}
    by_veit = _by_veit(spectrum)

    def row(lengths: list[int]) -> dict[str, str]:
        first, last = lengths[0], lengths[-1]
        share, paths = sum(spectrum.share[k] for k in lengths), sum(of_paths[k] for k in lengths)
        cells = {"branches": f"{first}" if first == last else f"{first}…{last}", "share %": _percent(share)}
        cells[_BARS] = _bar(share / top, paths / top if has_paths else None)
        cells["paths %"] = _percent(paths)
        if first == last:
            cells |= {"norm": short(spectrum.norm[first]), "norm / path": short(spectrum.norm_per_path(first))}
            cells["sampled"] = _sample(sampled[first]) if first in sampled else ""
        cells["sampled %"] = _percent(sum(by_veit.get(k, 0.0) for k in lengths))
        return cells

    rows = [row(lengths) for lengths in _folded(spectrum.share, of_paths)]
    if longer is not None:
        rows.append({
            "branches": f"{spectrum.max_length + 1} or more", "share %": _percent(longer),
            _BARS: _bar(longer / top, None), "paths %": _percent(1 - sum(of_paths)),
            "norm": short(spectrum.longer_norm),
        })  # fmt: skip
    columns = (
        ["branches", "share %"] + [_BARS] * bars + ["paths %"] * has_paths + ["norm"] + ["norm / path"] * has_paths
    )
    columns += ["sampled"] * bool(sampled) + ["sampled %"] * bool(by_veit)
    return Table(
        columns=tuple(columns),
        rows=tuple(tuple(cells.get(c, "") for c in columns) for cells in rows),
        numeric=tuple(c for c in columns if c not in ("branches", _BARS)),
    )


def _by_veit(spectrum: PathSpectrum) -> dict[int, float]:
    """The shares that single paths give, which need all lengths."""
    return spectrum.sampled_shares() if spectrum.longer_share is None else {}


def _folded(shares: tuple[float, ...], of_paths: list[float]) -> list[list[int]]:
    """The lengths, neighbours without gradient and without paths together."""
    lines: list[list[int]] = []
    idle = False
    for k, share in enumerate(shares):
        nothing = abs(share) < _NOTHING and of_paths[k] < _NOTHING
        if nothing and idle:
            lines[-1].append(k)
        else:
            lines.append([k])
        idle = nothing
    return lines


def _bar(share: float, paths: float | None) -> str:
    """A bar of the share (``−`` before it if negative), and a stroke where the share of the paths ends."""
    cells = list(f"{blocks(share, BAR):<{BAR}}")
    if paths is not None:
        at = min(round(paths * BAR), BAR - 1)
        if cells[at] == " ":
            cells[at] = _OF_PATHS
    return ("−" if share < 0 else "│") + "".join(cells).rstrip()


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:.1f}" if abs(share) >= _NOTHING else "<0.1"


def _sample(sample: SampledLength) -> str:
    if sample.norm_error is None or sample.norm == 0:
        return short(sample.norm)
    return (
        short(sample.norm)
        if sample.norm_error == 0
        else f"{short(sample.norm)} ±{100 * sample.norm_error / sample.norm:.0f}%"
    )


# ---- charts


def _charts(spectrum: PathSpectrum) -> tuple[Part, ...]:
    lengths = tuple(map(float, range(spectrum.max_length + 1)))
    has_paths = spectrum.of != "parameters"
    series = [Series(name="gradient, exact", y=tuple(100 * s for s in spectrum.share), x=lengths)]
    if has_paths:
        of_paths = tuple(100 * spectrum.binomial(k) for k in range(spectrum.max_length + 1))
        series.append(Series(name=f"2^{len(spectrum.units)} paths", y=of_paths, x=lengths))
    by_veit = _by_veit(spectrum)
    if by_veit:
        series.append(
            Series(
                name="gradient, from single paths", y=tuple(100 * v for v in by_veit.values()),
                x=tuple(map(float, by_veit)),
            )
        )  # fmt: skip
    shares = Lines(
        series=tuple(series), x="branches passed", unit="%", title="Share of the gradient by path length", note=SHARES
    )
    if not has_paths or len(lengths) < 2:
        return (shares,)
    return (shares, _per_path(spectrum, lengths))


def _per_path(spectrum: PathSpectrum, lengths: tuple[float, ...]) -> Lines:
    exact = tuple(spectrum.norm_per_path(k) for k in range(spectrum.max_length + 1))
    series = [Series(name="all paths of the length together", y=exact, x=lengths)]
    if spectrum.sampled:
        spread = [s.norm_error or 0.0 for s in spectrum.sampled]
        series.append(
            Series(
                name="single paths, mean ± standard error",
                y=tuple(s.norm for s in spectrum.sampled),
                x=tuple(float(s.length) for s in spectrum.sampled),
                low=tuple(s.norm - e for s, e in zip(spectrum.sampled, spread, strict=True)),
                high=tuple(s.norm + e for s, e in zip(spectrum.sampled, spread, strict=True)),
            )
        )
    return Lines(
        series=tuple(series), x="branches passed", log=True, title="Norm of the gradient by one path", note=PER_PATH
    )
