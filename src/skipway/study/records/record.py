"""What is kept of a run when its folder is gone: a small file with spec, result and curve, without weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from skipway.errors import SkipwayError
from skipway.spec import RunSpec
from skipway.study.curves import curve_of
from skipway.study.summary import as_number, came_to_nothing, final_error, final_loss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skipway.train.run import Run

__all__ = ["Record", "same_anywhere", "told_apart_by"]

_SCHEMA: Final = "skipway.record/1.0"
# Points of a curve that are kept; each is a mean over `log_every` steps.
_POINTS: Final = 120


def same_anywhere(spec: RunSpec) -> RunSpec:
    """The spec without what changes from one machine to another and not what is measured.

    Where the data lies, threads, and how often is logged and kept.
    """
    plain = RunSpec(model="")
    return replace(
        spec,
        data=replace(spec.data, root=None, download=False),
        threads=None, checkpoint_every=plain.checkpoint_every, log_every=plain.log_every, inspect=plain.inspect,
    )  # fmt: skip


def told_apart_by(spec: RunSpec) -> dict[str, Any]:
    """What tells a run from others: the settings that are not the defaults, without names and words.

    A setting that a later version adds is at its default in what is on record, and leaves its key as it was.
    """
    values, plain = _wordless(same_anywhere(spec)), _wordless(RunSpec(model=""))
    return _changed(values, plain)


def _wordless(spec: RunSpec) -> dict[str, Any]:
    values = spec.to_dict()
    for word in ("name", "source"):
        del values["recipe"][word]
    return values


def _changed(values: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _changed(value, plain[key]) if isinstance(value, dict) else value
        for key, value in values.items()
        if value != plain[key]
    }


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run that is over.

    Args:
        spec: of the run, `same_anywhere`.
        result: as the run folder has it: ``status``, ``test_error`` (percent), ``train_loss`` (nats), ``seconds`` …
        loss: step and training loss (nats) along the way.
        tests: step and test error (percent) along the way.
        environment: what it ran on and with, and the data.
        commit: of the code, where it ran from a repository; with ``+`` behind it if there were changes beside it.
    """

    spec: RunSpec
    result: dict[str, Any]
    loss: tuple[tuple[int, float], ...] = ()
    tests: tuple[tuple[int, float], ...] = ()
    environment: dict[str, Any]
    commit: str = ""

    @classmethod
    def of(cls, run: Run, *, commit: str = "") -> Record:
        """What is kept of a run.

        Args:
            run: one that is over.
            commit: of the code.
        """
        lines = run.metrics()
        return cls(
            spec=same_anywhere(run.spec),
            result=run.result,
            loss=_thinned(curve_of(lines, "loss")),
            tests=_thinned(curve_of(lines, "test_error")),
            environment=_nameless(run.environment),
            commit=commit,
        )

    @property
    def status(self) -> str:
        """``"finished"`` or ``"diverged"``."""
        return str(self.result["status"])

    @property
    def test_error(self) -> float | None:
        """In percent; None where the run diverged."""
        return final_error(self.result)

    @property
    def train_loss(self) -> float | None:
        """Mean of the last steps, in nats; None where the run diverged."""
        return final_loss(self.result)

    @property
    def seconds(self) -> float:
        """Of training, beside other runs."""
        return as_number(self.result.get("seconds")) or 0.0

    @cached_property
    def failed(self) -> bool:
        """Whether the training came to nothing: not finite at the end, or within 0.05 of ln(classes)."""
        return came_to_nothing(self.result, self.environment)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return {
            "schema": _SCHEMA, "model": self.spec.model, "seed": self.spec.seed, "result": self.result,
            "loss": [list(point) for point in self.loss], "tests": [list(point) for point in self.tests],
            "spec": self.spec.to_dict(), "environment": self.environment, "commit": self.commit,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Record:
        """Read a record back.

        Raises:
            SkipwayError: another schema, or what a record does not hold.
        """
        if values.get("schema") != _SCHEMA:
            raise SkipwayError(f"a record of schema {values.get('schema')!r}", repr(_SCHEMA))
        try:
            return cls(
                spec=RunSpec.from_dict(values["spec"]),
                result=dict(values["result"]),
                loss=tuple((int(step), float(value)) for step, value in values["loss"]),
                tests=tuple((int(step), float(value)) for step, value in values["tests"]),
                environment=dict(values["environment"]),
                commit=str(values["commit"]),
            )
        except SkipwayError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise SkipwayError(f"a record that does not hold {error}", "the file as it was written") from None


def _thinned(curve: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Neighbours joined to their mean, until few enough are left; losses to five digits."""
    points = list(curve.items())
    width = -(-len(points) // _POINTS) or 1
    chunks = [points[k : k + width] for k in range(0, len(points), width)]
    return tuple((c[-1][0], float(f"{math.fsum(v for _, v in c) / len(c):.5g}")) for c in chunks)


def _nameless(environment: dict[str, Any]) -> dict[str, Any]:
    """Without the paths of the machine."""
    data = {key: value for key, value in environment["data"].items() if key not in ("root", "path", "cache")}
    return {**{key: value for key, value in environment.items() if key != "folder"}, "data": data}
