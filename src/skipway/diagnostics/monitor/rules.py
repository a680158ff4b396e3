"""Rules that a monitor can raise during training, each once for a unit."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.finding import Finding
from skipway.diagnostics.rules import RULES, Evidence
from skipway.diagnostics.rules.number_format import HEADROOM
from skipway.diagnostics.rules.rank_collapse import FEWEST_UNITS, UNLIKE
from skipway.trace.record import Trace
from skipway.units.unit import StreamNumbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.monitor.record import Reading, Record
    from skipway.units.locate import Located
    from skipway.units.unit import Unit

__all__ = ["Watch"]

_GRADIENT: Final = ("gradient-vanishing", "gradient-exploding")
# A dense graph net that trains reaches 0.966, post-norm stacks that do not train 1.00.
_ALIKE: Final = 0.995
_DEAD_SHARE: Final = 1e-4
# A branch that is dropped whole with probability 1/2 is seen idle 8 times in a row with 1/256.
_TIMES: Final = 8


class Watch:
    """Looks at each record of one model.

    Args:
        located: where the units are.
        units: the units.
    """

    def __init__(self, located: Located, units: Sequence[Unit]) -> None:
        self._units = units
        self._evidence = Evidence(
            units=units,
            graph=located.graph,
            measured=True,
            described=located.described,
            found=located.found,
            model=located.model,
            trace=Trace(located.graph, len(located.graph.nodes), located.writes_parameters),
        )
        self._raised: set[tuple[str, str]] = set()
        self._idle: Counter[str] = Counter()

    def look(self, record: Record) -> list[Finding]:
        """What is wrong at this step and was not said before."""
        stream = [u for u in record.units if u.on_stream]
        found = list(self._non_finite(record))
        if not found:
            found += [*self._gradient(record), *_headroom(record.units), *_collapse(stream), *self._dead(stream)]
        new = [f for f in found if (f.rule, f.path) not in self._raised]
        self._raised |= {(f.rule, f.path) for f in new}
        return new

    def _non_finite(self, record: Record) -> Iterator[Finding]:
        forward = next((u for u in record.units if not _finite(u.stream_rms, u.branch_rms, u.out_rms)), None)
        # With a GradScaler an infinite gradient is how it finds its factor.
        back = [u for u in record.units if record.scale is None and not _finite(u.grad_stream)]
        if forward is None and not back:
            return
        at = forward or back[-1]
        what = "on the stream" if forward else "in the gradient on its way back"
        yield RULES["non-finite"].finding(
            at.path,
            f"NaN or infinity {what}, first at this unit",
            {
                name: value
                for name in ("stream_rms", "branch_rms", "out_rms", "grad_stream")
                if (value := getattr(at, name)) is not None
            },
        )

    def _gradient(self, record: Record) -> Iterator[Finding]:
        numbers = [StreamNumbers(stream_rms=u.stream_rms, grad_stream=_usable(u.grad_stream)) for u in record.units]
        units = [replace(u, numbers=n) for u, n in zip(self._units, numbers, strict=True)]
        evidence = replace(self._evidence, units=units, kept={})
        for rule in _GRADIENT:
            yield from RULES[rule].check(evidence)

    def _dead(self, stream: Sequence[Reading]) -> Iterator[Finding]:
        shares = [u.branch_share for u in stream if u.branch_share is not None]
        if len(shares) < FEWEST_UNITS:
            return
        usual = statistics.median(shares)
        for unit in stream:
            idle = unit.branch_share is not None and unit.branch_share < _DEAD_SHARE * usual
            self._idle[unit.path] = self._idle[unit.path] + 1 if idle else 0
            if self._idle[unit.path] >= _TIMES:
                yield Finding(
                    rule="dead-unit",
                    severity="warning",
                    path=unit.path,
                    message=f"the branch has been idle at the last {_TIMES} measured steps, unlike the others",
                    evidence={"branch_share": unit.branch_share or 0.0, "median_share": usual, "times": _TIMES},
                    fix="look at its gate, its learning rate and weight decay; or remove the unit",
                    source="measured; a share of 1e-4 of the median over the units",
                )


def _headroom(units: Sequence[Reading]) -> Iterator[Finding]:
    limit = torch.finfo(torch.float16).max
    for unit in units:
        if unit.largest is not None and unit.largest > limit / HEADROOM:
            yield Finding(
                rule="fp16-headroom",
                severity="warning",
                path=unit.path,
                message=f"{unit.largest:.4g} of at most {limit:.0f} that float16 can hold",
                evidence={"largest": unit.largest, "limit": limit},
                fix="bfloat16, or a stream in float32; scale the branches down",
                source="range of float16; two doublings are left",
            )


def _collapse(stream: Sequence[Reading]) -> Iterator[Finding]:
    known = [(u.path, u.similarity) for u in stream if u.similarity is not None]
    if len(known) < FEWEST_UNITS or known[-1][1] < _ALIKE or known[0][1] > UNLIKE:
        return
    path = next(path for path, value in known if value >= _ALIKE)
    yield Finding(
        rule="rank-collapse",
        severity="warning",
        path=path,
        message=f"from here on tokens are alike: mean cosine {known[-1][1]:.4f} behind the last unit",
        evidence={"first": known[0][1], "last": known[-1][1], "units": len(known)},
        fix="pre-norm with zero-initialised branch ends, or DeepNorm constants; warm up",
        source="measured: 1.00 in post-norm stacks of 120 units that do not train, 0.97 at most in nets that do",
    )


def _finite(*values: float | None) -> bool:
    return all(v is None or math.isfinite(v) for v in values)


def _usable(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
