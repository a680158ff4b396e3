"""Reports: a tree of parts, lowered to the terminal and to JSON. No torch here."""

from skipway.report.jsonout import dumps as dumps
from skipway.report.jsonout import parts_to_dicts as parts_to_dicts
from skipway.report.jsonout import schema as schema
from skipway.report.terminal import renderable as renderable
from skipway.report.terminal import to_text as to_text
from skipway.report.view import inspection_parts as inspection_parts

__all__ = ["dumps", "inspection_parts", "parts_to_dicts", "renderable", "schema", "to_text"]
