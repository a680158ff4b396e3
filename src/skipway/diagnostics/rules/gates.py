"""Rules ``gate-unbounded`` and ``gate-shut``: highway gates that are none, or that are closed everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._gates import Gate, Seat, carriers, interpolations, is_bounded
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, module_of, stream
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from skipway.diagnostics.finding import Finding
    from skipway.diagnostics.look import Reduce

    _Number = Callable[[torch.Tensor], torch.Tensor]

__all__ = ["gate_shut", "gate_unbounded"]

# A gate made by a sigmoid written by hand may leave [0, 1] by rounding; one entry of a hundred outside is no accident.
_ROUNDING: Final = 1e-3
OUTSIDE: Final = 0.01
# y = T·F + (1 − T)·x lies between F and x; a stream that doubles between first and last gate has left it.
GROWN: Final = 2.0
# Highway nets start with biases down to −4, sigmoid(−4) = 0.018 (arXiv 1505.00387, section 3.1): that is not shut.
SHUT: Final = 0.01
_UNBOUNDED: Final = ops.WEIGHTED | ops.ADD | ops.NORM | frozenset({"tanh", "relu", "gelu", "silu", "leaky_relu", "elu"})
_LONGEST_WAY: Final = 24

_PROGRAM: Final = """
import torch
from torch import nn


class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.transform, self.gate = nn.Linear(16, 16), nn.Linear(16, 16)
        nn.init.constant_(self.gate.bias, BIAS)

    def forward(self, x):
        t = GATE
        return t * torch.relu(self.transform(x)) + (1 - t) * x


model = nn.Sequential(nn.Linear(16, 16), *[Highway() for _ in range(8)])
batch = torch.randn(32, 16)
"""
_HEALTHY: Final = _PROGRAM.replace("GATE", "torch.sigmoid(self.gate(x))").replace("BIAS", "-2.0")


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x.detach().double().square().mean().sqrt()


def _outside(x: torch.Tensor) -> torch.Tensor:
    return ((x < -_ROUNDING) | (x > 1 + _ROUNDING)).double().mean()


_OF_GATE: Final[tuple[tuple[str, _Number], ...]] = (
    ("least", torch.amin), ("most", torch.amax), ("outside", _outside),
)  # fmt: skip
_OF_STREAM: Final[tuple[tuple[str, _Number], ...]] = (("rms", _rms),)


@rule(
    "gate-unbounded",
    severity="error",
    summary="A gate T in y = T·F(x) + (1 − T)·x takes values outside [0, 1]: the unit no longer interpolates.",
    explanation="A sum of two values weighted with T and one minus T, one computed from the other, where more than 1 %"
    " of T's measured values lie outside [0, 1]. An error if the stream is measured to grow at least twofold between"
    " the first such gate and the last; else, or where nothing was measured, a warning. A factor computed from x that"
    " weighs the shortcut alone, T·x + F(x), counts only where the stream grows so; one on the branch alone"
    " (squeeze-and-excite, GLU) does not count.",
    fix="make the gate with a sigmoid: t = torch.sigmoid(self.gate(x))",
    source="Srivastava et al. 2015, arXiv 1505.00387, eq. 3; ICDAR-2019 issue 4",
    faulty=_PROGRAM.replace("GATE", "self.gate(x)").replace("BIAS", "-2.0"),
    healthy=_HEALTHY,
    wants=lambda evidence: (
        [
            Want(node=seat.node, name=f"{name}{seat.position}", reduce=_at(seat.position, reduce))
            for gate in _suspects(evidence)
            for seat, numbers in ((gate.read, _OF_GATE), (gate.carried, _OF_STREAM))
            for name, reduce in numbers
        ]
        + [Want(node=gate.join, name="out", reduce=lambda result, _: _rms(result)) for gate in _suspects(evidence)]
    ),
    explains=("stream-growth", "gradient-exploding", "gradient-vanishing", "non-finite"),
)
def gate_unbounded(evidence: Evidence) -> Iterator[Finding]:
    """Fire for gates whose measured values leave [0, 1]."""
    found = _convicted(_interpolating(evidence), evidence)
    if not found:
        yield from _unmeasured(evidence)
    for gates in (found, _convicted(carriers(evidence) if evidence.seen else (), evidence)):
        growth = _growth(gates, evidence)
        grows = growth is not None and growth >= GROWN
        if not gates or (gates is not found and not grows):  # one side weighted alone is no gate by its form
            continue
        where = module_of(gates[0].gate, evidence)
        least, most = _range(gates, evidence)
        share = sum(_seen(evidence, g.read, "outside") or 0.0 for g in gates) / len(gates)
        said: dict[str, float | int | str] = {"gates": len(gates), "gate_least": least, "gate_most": most}
        said |= {"share_outside": share} | ({} if growth is None else {"stream_growth": growth})
        grown = f", and the stream grows {growth:.3g}-fold" if growth is not None and grows else ""
        yield RULES["gate-unbounded"].finding(
            _path(gates[0], evidence),
            f"the gate made in {where} takes values from {least:.3g} to {most:.3g}{grown}{_times(gates)}",
            said,
            severity=None if grows else "warning",
            fix=_fix(where),
        )


def _convicted(suspects: Sequence[Gate], evidence: Evidence) -> list[Gate]:
    return [g for g in suspects if (_seen(evidence, g.read, "outside") or 0.0) > OUTSIDE]


def _growth(gates: Sequence[Gate], evidence: Evidence) -> float | None:
    """By how much the stream grows from the first of these gates to the last."""
    if not gates:
        return None
    begun = _seen(evidence, gates[0].carried, "rms")
    sizes = [size for g in gates if math.isfinite(size := evidence.seen.get((g.join, "out"), math.nan))]
    return None if not begun or not sizes else sizes[-1] / begun  # what overflows later has grown enough before


def _range(gates: Sequence[Gate], evidence: Evidence) -> tuple[float, float]:
    """Least and largest value of these gates, as far as they are finite."""
    values = [_seen(evidence, g.read, name) for g in gates for name in ("least", "most")]
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return min(finite, default=math.nan), max(finite, default=math.nan)


def _unmeasured(evidence: Evidence) -> Iterator[Finding]:
    """Where there were no further runs: gates that come straight from weights."""
    links, nodes = evidence.found.links, evidence.graph.nodes
    certain = [g for g in _interpolating(evidence) if nodes[links.strip(g.gate)].op in _UNBOUNDED]
    if evidence.lab is not None or not certain:
        return
    where = module_of(certain[0].gate, evidence)
    yield RULES["gate-unbounded"].finding(
        _path(certain[0], evidence),
        f"{where} makes a gate that nothing keeps in [0, 1] (not measured){_times(certain)}",
        {"gates": len(certain)},
        severity="warning",
        fix=_fix(where),
    )


@rule(
    "gate-shut",
    severity="warning",
    summary="A gate is so biased that it shuts the branch, or the shortcut, everywhere.",
    explanation="Every measured value of a gate lies under 0.01 (or, where one minus it weighs the other side, above"
    " 0.99): nothing comes through and hardly any gradient. Biases of -1 to -4, with which highway nets are meant to"
    " start, are left alone.",
    fix="set the gate's bias so that some of both sides comes through, e.g. nn.init.constant_(self.gate.bias, -2.0)",
    source="Srivastava et al. 2015, arXiv 1505.00387, section 3.1; tflearn pull request 134",
    faulty=_PROGRAM.replace("GATE", "torch.sigmoid(self.gate(x))").replace("BIAS", "-12.0"),
    healthy=_HEALTHY,
    wants=lambda evidence: [
        Want(node=side.seat.node, name=f"{name}{side.seat.position}", reduce=_at(side.seat.position, reduce))
        for side in _sides(evidence)
        for name, reduce in _OF_GATE
    ],
    explains=("gradient-vanishing", "dead-unit"),
)
def gate_shut(evidence: Evidence) -> Iterator[Finding]:
    """Fire for gates that let nothing through anywhere."""
    if not evidence.seen:
        return
    for shut in ("branch", "shortcut"):
        found = []
        for side in _sides(evidence):
            least, most = _seen(evidence, side.seat, "least"), _seen(evidence, side.seat, "most")
            if least is None or most is None:
                continue
            low, high = least >= -_ROUNDING and most < SHUT, least > 1 - SHUT and most <= 1 + _ROUNDING
            if (low and side.when_low == shut) or (high and side.when_high == shut):
                found.append((side, least, most))
        if not found:
            continue
        first, least, most = found[0]
        where = module_of(first.gate, evidence)
        yield RULES["gate-shut"].finding(
            first.path,
            f"the gate made in {where} shuts the {shut} everywhere: its values lie between {least:.2g} and {most:.2g}"
            + (f" \N{MULTIPLICATION SIGN}{len(found)}" if len(found) > 1 else ""),
            {"gates": len(found), "gate_least": min(f[1] for f in found), "gate_most": max(f[2] for f in found)},
            fix=f"move the bias of {where} towards zero, so that some of both sides comes through",
        )


def _fix(where: str) -> str:
    return f"put a sigmoid on the gate made in {where}: t = torch.sigmoid(...)"


def _suspects(evidence: Evidence) -> list[Gate]:
    return _interpolating(evidence) + carriers(evidence)


def _interpolating(evidence: Evidence) -> list[Gate]:
    links = evidence.found.links
    return [g for g in interpolations(evidence) if not is_bounded(g.gate, links)]


def _path(gate: Gate, evidence: Evidence) -> str:
    return evidence.graph.calls[evidence.graph.nodes[gate.join].call].path or "<root>"


def _times(gates: Sequence[Gate]) -> str:
    return f" \N{MULTIPLICATION SIGN}{len(gates)}" if len(gates) > 1 else ""


@dataclass(frozen=True, slots=True)
class _Side:
    """A gate, where it is read, and which side is shut when it is low and when it is high (empty: none)."""

    path: str
    gate: int
    seat: Seat
    when_low: str
    when_high: str


def _sides(evidence: Evidence) -> list[_Side]:
    """Gates of interpolating joins, and those that stand on the branch or shortcut of a main unit alone."""
    found = []
    for gate in interpolations(evidence):
        low, high = ("branch", "shortcut") if gate.on_branch else ("shortcut", "branch")
        found.append(_Side(_path(gate, evidence), gate.gate, gate.read, low, high))
    seen = {gate.join for gate in interpolations(evidence)}
    for member in stream(evidence):
        candidate = member.described.candidate
        if candidate.join in seen or candidate.merge != "add":
            continue
        for term, name in ((candidate.shortcut, "shortcut"), *((t, "branch") for t in candidate.branches)):
            found += [_Side(member.path, gate, seat, name, "") for gate, seat in _gates_on(term.node, member, evidence)]
    return found


def _gates_on(i: int, member: Member, evidence: Evidence) -> Iterator[tuple[int, Seat]]:
    """Gates between an operand of the join and the last weights before it."""
    links, routes = evidence.found.links, evidence.found.routes
    for _ in range(_LONGEST_WAY):
        if i in (member.described.candidate.x, member.described.candidate.base):
            return
        steps = [s for s in routes.steps(i) if s.kind in ("view", "scale", "dropout", "gate")]
        if len(steps) != 1:
            return
        node, source = links.nodes[i], steps[0].source
        if steps[0].kind == "gate" and not node.attrs.get("synthetic"):
            position = next((p for p, j in enumerate(node.inputs) if j != source), None)
            if position is not None:
                yield node.inputs[position], Seat(i, position)
        i = source


def _seen(evidence: Evidence, seat: Seat, name: str) -> float | None:
    return evidence.seen.get((seat.node, f"{name}{seat.position}"))


def _at(position: int, reduce: _Number) -> Reduce:
    """A number of the operand at a position."""
    return lambda _, operands: reduce(operands[position])
