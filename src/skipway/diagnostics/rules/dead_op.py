"""Rule ``dead-op``: a module of a unit that never influences its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn

from skipway.diagnostics.rules._programs import CONV, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.units.links import members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["dead_op"]

_DROPOUTS: Final = (nn.modules.dropout._DropoutNd,)  # noqa: SLF001  # their base class


@rule(
    "dead-op",
    severity="warning",
    summary="A module inside a unit is built, or even run, and never influences the output.",
    explanation="Within the modules that hold residual units: parameters that nothing reads on the way to an output (a"
    " second convolution that reads the block's input, so that the first one's result is lost), and dropout that is"
    " never called. A module whose parameters are read through its attributes"
    " (nn.MultiheadAttention.out_proj) is alive; heads and other parts outside of units are not looked at.",
    fix="give the module the output of the one before it, or remove it",
    source="hypnopump/keras-wrn PR 2; NX-AI/tirex #19",
    faulty=program(CONV, unit="y = F.relu(self.norm1(self.first(x))); return x + self.norm2(self.second(x))", depth=4),
    healthy=program(CONV, unit="y = F.relu(self.norm1(self.first(x))); return x + self.norm2(self.second(y))", depth=4),
)
def dead_op(evidence: Evidence) -> Iterator[Finding]:
    """Fire for modules inside units whose parameters, or whose call, lead nowhere."""
    found = [*_without_effect(evidence), *_never_called(evidence)]
    if not found:
        return
    by_kind: dict[tuple[str, str], list[str]] = {}
    for path, why in found:
        kind = type(evidence.model.get_submodule(path)).__name__
        by_kind.setdefault((f"{path.rpartition('.')[2]} ({kind})", why), []).append(path)
    for (name, why), paths in by_kind.items():
        more = f" \N{MULTIPLICATION SIGN}{len(paths)}" if len(paths) > 1 else ""
        yield RULES["dead-op"].finding(paths[0], f"{name} {why}{more}", {"modules": len(paths), "name": paths[0]})


def _units_modules(evidence: Evidence) -> list[str]:
    """Paths of the modules that hold a unit's join, none inside another."""
    calls = evidence.graph.calls
    own = {calls[scope[0]].path for scope in evidence.scopes if scope}
    inner = {p for p in own if p and "?" not in p}
    return sorted(p for p in inner if not any(p.startswith(f"{q}.") for q in inner if q != p))


def _without_effect(evidence: Evidence) -> Iterator[tuple[str, str]]:
    links, graph = evidence.found.links, evidence.graph
    used = 0
    for node in graph.nodes:
        if links.alive[node.id]:
            used |= node.params
            for j in node.inputs:
                used |= graph.nodes[j].params
    alive = {graph.parameter_names[k] for k in members(used)}
    shared = {id(p) for n, p in evidence.model.named_parameters(remove_duplicate=False) if n in alive}
    called = {call.path for call in graph.calls}
    for root in _units_modules(evidence):
        for path, module in evidence.model.get_submodule(root).named_modules(prefix=root):
            own = [p for _, p in module.named_parameters(recurse=False)]
            if path == root or not own or any(id(p) in shared for p in own):
                continue
            why = "runs, and its result is lost" if path in called else "is never used"
            yield path, why


def _never_called(evidence: Evidence) -> Iterator[tuple[str, str]]:
    if not evidence.model.training:
        return
    graph = evidence.graph
    called = {call.path for call in graph.calls}
    # Attention drops by a number that it takes from a module: that module is never called.
    applied = {round(float(p), 6) for n in graph.nodes if (p := _rate(n.op, n.attrs)) is not None}
    for root in _units_modules(evidence):
        for path, module in evidence.model.get_submodule(root).named_modules(prefix=root):
            unused = isinstance(module, _DROPOUTS) and module.p > 0 and path not in called
            if unused and round(float(module.p), 6) not in applied:
                yield path, "is never called"


def _rate(op: str, attrs: dict[str, object]) -> float | None:
    rate = attrs.get("p")
    if not isinstance(rate, (int, float)):
        return None
    if op == "bernoulli":  # of a mask, what is kept
        return 1.0 - rate
    return rate if op in ops.DROPOUT else None
