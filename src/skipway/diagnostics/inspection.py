"""The result of `skipway.inspect`: units, findings, what was measured and what was not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from skipway.diagnostics.finding import Finding, Severity, at_least
from skipway.diagnostics.layer import Layer
from skipway.diagnostics.path_spectrum.result import PathSpectrum
from skipway.errors import SkipwayError
from skipway.report.shown import Shown
from skipway.units.passage import Passage
from skipway.units.reading import checked, number
from skipway.units.unit import Unexplained, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from skipway.parts import Part

__all__ = ["SCHEMA_VERSION", "Inspection"]

SCHEMA_VERSION: Final = "1.0"
_SCHEMA: Final = f"skipway.inspection/{SCHEMA_VERSION}"
_TEXTS: Final = ("model", "mode", "batch", "loss", "profile")
_OFTEN_ABSENT: Final = ("paths", "proofs", "stem", "head")  # the latter in older records
_REST: Final = ("layers", "notes", "slopes", "totals", "runs", "environment", "seconds")


@dataclass(frozen=True, kw_only=True, repr=False)
class Inspection(Shown):
    """What `skipway.inspect` found.

    Args:
        model: name or class of the model.
        mode: ``"train"`` or ``"eval"``, as measured.
        batch: the batch in words, e.g. ``"float32[2,3,224,224]"``.
        loss: the loss in words.
        profile: ``"structure"``, ``"fast"``, ``"default"`` or ``"thorough"``.
        units: residual units in order of execution, all kinds.
        findings: verdicts, gravest first.
        unexplained: joins of the stream that are not reported as units, with the reason.
        layers: weighted layers in order of execution, measured where there are fewer than two units.
        slopes: change per unit along the main stream, as natural logarithms: ``stream_rms``, ``grad_stream`` (from the
            last unit to the first), ``similarity`` (plain difference); dimensionless.
        totals: ``parameters``, ``flops``, ``activation_bytes``, ``operations`` (recorded) of the whole model.
        runs: forward runs of the model by purpose, e.g. ``{"trace": 1, "measure": 1, "prove": 1}``.
        notes: what was not looked at or done otherwise, and why.
        environment: versions and device.
        seconds: wall-clock time of the inspection.
        stem, head: what stands between the input and the first unit of the main stream, and between its last unit and
            the output; None where nothing does.
        paths: the gradient by path length, where it was asked for.
        proofs: what `skipway.prove` showed of findings, as `Proof.to_dict` gives it, where that was asked for.
    """

    model: str
    mode: str
    batch: str
    loss: str
    profile: str
    units: list[Unit]
    findings: list[Finding]
    unexplained: list[Unexplained]
    layers: list[Layer] = field(default_factory=list)
    slopes: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    stem: Passage | None = None
    head: Passage | None = None
    paths: PathSpectrum | None = None
    proofs: list[Mapping[str, Any]] = field(default_factory=list)

    def worst(self, threshold: str = "error", ignore: tuple[str, ...] = ()) -> list[Finding]:
        """Findings at or above `threshold`, rules in `ignore` left out."""
        return [f for f in self.findings if f.rule not in ignore and at_least(f.severity, threshold)]

    def count(self, severity: Severity) -> int:
        """Number of findings of one severity."""
        return sum(f.severity == severity for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The inspection as JSON-ready values; `schema` names the version of this layout."""
        return {
            "schema": _SCHEMA,
            "model": self.model,
            "mode": self.mode,
            "batch": self.batch,
            "loss": self.loss,
            "profile": self.profile,
            "units": [u.to_dict() for u in self.units],
            "findings": [f.to_dict() for f in self.findings],
            "unexplained": [u.to_dict() for u in self.unexplained],
            "layers": [layer.to_dict() for layer in self.layers],
            "slopes": dict(self.slopes),
            "totals": dict(self.totals),
            "runs": dict(self.runs),
            "notes": list(self.notes),
            "environment": dict(self.environment),
            "seconds": self.seconds,
            "stem": None if self.stem is None else self.stem.to_dict(),
            "head": None if self.head is None else self.head.to_dict(),
            **({} if self.paths is None else {"paths": self.paths.to_dict()}),
            **({"proofs": [dict(p) for p in self.proofs]} if self.proofs else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Inspection:
        """The inspection that `to_dict` wrote, also by way of JSON; needs no torch.

        Raises:
            SkipwayError: another schema, a field that is missing or unknown, or a record that cannot be read.
        """
        known = {name: value for name, value in data.items() if name not in _OFTEN_ABSENT}
        checked(known, ("schema", *_TEXTS, "units", "findings", "unexplained", *_REST), "inspection")
        if data["schema"] != _SCHEMA:
            raise SkipwayError(f"an inspection of schema {data['schema']!r}", repr(_SCHEMA), "inspect the model again")
        return cls(
            **{name: data[name] for name in _TEXTS},
            units=[Unit.from_dict(d) for d in data["units"]],
            findings=[Finding.from_dict(d) for d in data["findings"]],
            unexplained=[Unexplained.from_dict(d) for d in data["unexplained"]],
            layers=[Layer.from_dict(d) for d in data["layers"]],
            slopes={name: number(value, name) for name, value in data["slopes"].items()},
            totals=dict(data["totals"]),
            runs=dict(data["runs"]),
            environment=dict(data["environment"]),
            notes=list(data["notes"]),
            seconds=data["seconds"],
            stem=Passage.from_dict(data["stem"]) if data.get("stem") is not None else None,
            head=Passage.from_dict(data["head"]) if data.get("head") is not None else None,
            paths=PathSpectrum.from_dict(data["paths"]) if data.get("paths") is not None else None,
            proofs=list(data.get("proofs", ())),
        )

    def _parts(self) -> tuple[Part, ...]:
        from skipway.report import inspection_parts

        return inspection_parts(self)

    def _report(self) -> tuple[Part, ...]:
        from skipway.report import inspection_report

        return inspection_report(self)

    def _title(self) -> str:
        return f"skipway · {self.model}"

    def to_frame(self) -> pd.DataFrame:
        """Units as a pandas DataFrame, a row each (needs the extra ``frame``)."""
        try:
            import pandas as pd
        except ModuleNotFoundError:
            from skipway.errors import MissingPackageError

            raise MissingPackageError("pandas", "Inspection.to_frame", "frame") from None
        rows = [u.to_dict() | {"before": None if u.before is None else u.before.equation()} for u in self.units]
        frame: pd.DataFrame = pd.DataFrame(rows)
        return frame
