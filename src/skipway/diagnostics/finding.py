"""A finding: what is wrong, where, by which evidence, and what mends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from skipway.errors import UnknownNameError
from skipway.units.reading import checked, restored

__all__ = ["SEVERITIES", "Finding", "Severity", "at_least"]

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict of a rule.

    Args:
        rule: stable rule id, e.g. ``"gradient-vanishing"``.
        severity: ``"error"``, ``"warning"`` or ``"info"``.
        path: module path of the place, empty for the whole model.
        evidence: the measured numbers by name.
        fix: what to change, in words.
        source: where the rule and its threshold come from.
        message: what is wrong, in one sentence.
        cause: id of the rule whose finding explains this one, if one does: mend that first.
    """

    rule: str
    severity: Severity
    path: str
    evidence: Mapping[str, float | int | str] = field(default_factory=dict)
    fix: str = ""
    source: str = ""
    message: str = ""
    cause: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "path": self.path,
            "message": self.message,
            "evidence": dict(self.evidence),
            "fix": self.fix,
            "source": self.source,
            "cause": self.cause,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """The record that `to_dict` wrote.

        Raises:
            SkipwayError: a field is missing or unknown.
            UnknownNameError: the severity is none.
        """
        if isinstance(data, Mapping):
            data = {"cause": "", **data}  # records of before there were causes
        checked(data, ("rule", "severity", "path", "message", "evidence", "fix", "source", "cause"), "finding")
        severity: Severity = data["severity"]
        if severity not in SEVERITIES:
            raise UnknownNameError("severity", severity, SEVERITIES)
        evidence = {name: restored(value) for name, value in data["evidence"].items()}
        return cls(
            data["rule"], severity, data["path"], evidence, data["fix"], data["source"], data["message"], data["cause"]
        )  # fmt: skip


def at_least(severity: Severity, threshold: str) -> bool:
    """Whether `severity` is `threshold` or graver; ``"never"`` is graver than all."""
    if threshold == "never":
        return False
    if threshold not in SEVERITIES:
        raise UnknownNameError("severity", threshold, [*SEVERITIES, "never"])
    return SEVERITIES.index(severity) <= SEVERITIES.index(threshold)
