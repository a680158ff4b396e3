"""Strings into HTML: every text that a report shows comes from somebody's model and is only text."""

from __future__ import annotations

import html
import re
from typing import Final

from skipway.report.jsonout import dumps

__all__ = ["escaped", "for_plotly", "script_json"]

# Control characters are no characters of HTML, and half a surrogate pair cannot be written as UTF-8.
_NOT_HTML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def escaped(text: object) -> str:
    """Text for the inside of an element or of a quoted attribute; what HTML cannot hold is shown as ``�``."""
    return html.escape(_NOT_HTML.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True)


def for_plotly(text: str) -> str:
    """Text for a chart: plotly reads a few tags in strings, so none may look like one."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def script_json(value: object) -> str:
    """JSON that may stand inside ``<script>``: ASCII only, and nothing that could end the element or open another."""
    text = dumps(value, indent=None, ascii_only=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
