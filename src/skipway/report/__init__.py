"""Reports: a tree of parts, lowered to the terminal, to one HTML file and to JSON. No torch here."""

from skipway.report.html import to_html as to_html
from skipway.report.html import write_html as write_html
from skipway.report.jsonout import dumps as dumps
from skipway.report.jsonout import parts_to_dicts as parts_to_dicts
from skipway.report.jsonout import schema as schema
from skipway.report.lesion import lesion_parts as lesion_parts
from skipway.report.lesion import lesion_report as lesion_report
from skipway.report.profile import stream_profiles as stream_profiles
from skipway.report.proof import proof_parts as proof_parts
from skipway.report.terminal import renderable as renderable
from skipway.report.terminal import to_text as to_text
from skipway.report.view import inspection_parts as inspection_parts
from skipway.report.view import inspection_report as inspection_report
from skipway.report.view import signal_map as signal_map

__all__ = [
    "dumps", "inspection_parts", "inspection_report", "lesion_parts", "lesion_report",
    "parts_to_dicts", "proof_parts", "renderable", "schema",
    "signal_map", "stream_profiles", "to_html", "to_text", "write_html",
]  # fmt: skip
