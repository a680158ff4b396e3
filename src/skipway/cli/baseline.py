"""``--baseline``: findings that an earlier report holds already are known, and fail nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from skipway.diagnostics.inspection import Inspection
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from skipway.diagnostics.finding import Finding

__all__ = ["new_findings", "read_baseline"]


def read_baseline(file: Path, model: str) -> frozenset[tuple[str, str]]:
    """Rule and path of the findings in a report that ``skipway inspect MODEL --json`` printed.

    Raises:
        SkipwayError: the file is missing, is no such report, or is that of another model.
    """
    made = f"skipway inspect {model} --json > {file}"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise SkipwayError(f"it holds {type(values).__name__}, no object")
        report = Inspection.from_dict(values)
    except OSError as error:
        raise SkipwayError(f"{file}: {error.strerror}", "a report of an earlier inspection", made) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # no JSON, or fields of other kinds
        reason = error.given if isinstance(error, SkipwayError) else next(iter(str(error).splitlines()), "")
        raise SkipwayError(f"{file} is no report of an inspection: {reason}", "what --json prints", made) from None
    if report.model != model:
        raise SkipwayError(f"{file} is the report of {report.model}", f"one of {model}", made)
    return frozenset((f.rule, f.path) for f in report.findings)


def new_findings(findings: Sequence[Finding], known: frozenset[tuple[str, str]]) -> list[Finding]:
    """Those that the baseline does not hold."""
    return [f for f in findings if (f.rule, f.path) not in known]
