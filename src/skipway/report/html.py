"""Lowering to one self-contained HTML file, which opens offline and asks nobody for anything."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Final

from skipway.parts import Text
from skipway.report.escape import escaped
from skipway.report.files import write_text
from skipway.report.html_parts import Page, lower_all

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike
    from pathlib import Path

    from skipway.parts import Part

__all__ = ["to_html", "write_html"]

# Whatever a report may hold, the browser is told to fetch nothing.
_POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
# As specific as any rule above that sets colours.
_EVERY_ROOT: Final = ":root, :root[data-theme], :root:not([data-theme=light])"
_NO_SCRIPT: Final = "The figures are drawn by a script inside this file; without it, the tables hold the same."


def to_html(parts: Iterable[Part], *, title: str) -> str:
    """The parts as one HTML document with styles, scripts and, if there is a chart, plotly inside.

    Args:
        parts: the report; a title text at its beginning becomes the heading of the page.
        title: title of the window, and the heading where the parts bring none.
    """
    listed = tuple(parts)
    heading = title
    if listed and isinstance(listed[0], Text) and listed[0].tone == "title":
        heading, listed = listed[0].text, listed[1:]
    page = Page()
    body = lower_all(listed, page)
    scripts = ["page.js"] + ["road.js"] * bool(page.maps)
    return "\n".join((
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escaped(title)}</title>\n<style>\n{_style()}\n</style>\n</head>\n<body>",
        _asset("signs.svg") if page.maps else "",
        '<a class="skip" href="#main">Skip to the report</a>',
        f'<header class="top"><h1>{escaped(heading)}</h1>',
        '<button type="button" id="theme" hidden>Dark</button></header>',
        _contents(page),
        f'<main id="main" tabindex="-1">\n{body}\n</main>',
        f"<noscript><p>{_NO_SCRIPT}</p></noscript>",
        *(f"<script>\n{_asset(name)}\n</script>" for name in scripts),
        # Last, and large: the road can be read before the charts are drawn.
        _charts() if page.charts else "",
        "</body>\n</html>\n",
    ))  # fmt: skip


def write_html(path: str | PathLike[str], parts: Iterable[Part], *, title: str) -> Path:
    """Write the parts to `path` as one HTML file, whole or not at all, and give the path.

    Args:
        path: the file; what stood there is replaced.
        parts: the report.
        title: title of the window.

    Raises:
        SkipwayError: the file cannot be written.
    """
    return write_text(path, to_html(parts, title=title))


def _asset(name: str) -> str:
    return resources.files("skipway.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8").strip()


def _style() -> str:
    """The style sheet, with its colours for light and dark: as the system is set, or as the reader chose."""
    light, dark = _asset("light.css"), _asset("dark.css")
    return "\n".join((
        f":root {{ color-scheme: light;\n{light}\n}}",
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ color-scheme: dark;\n{dark}\n}} }}",
        f":root[data-theme=dark] {{ color-scheme: dark;\n{dark}\n}}",
        _asset("page.css"),
        _asset("road.css"),
        f"@media print {{ {_EVERY_ROOT} {{ color-scheme: light;\n{light}\n}} }}",
    ))  # fmt: skip


def _contents(page: Page) -> str:
    if len(page.sections) < 3:
        return ""
    links = "".join(f'<li><a href="#{name}">{escaped(title)}</a></li>' for name, title in page.sections)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _charts() -> str:
    from plotly.offline import get_plotlyjs

    return f"<script>\n{get_plotlyjs()}\n</script>\n<script>\n{_asset('charts.js')}\n</script>"
