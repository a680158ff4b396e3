"""Rule ``dead-op``: a module of a unit that never influences its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn

from skipway.diagnostics.rules._chance import choosing, further_runs
from skipway.diagnostics.rules._programs import CONV, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.trace.attributes import named_modules
from skipway.units.weights import alive_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding
    from skipway.trace.graph import Graph
    from skipway.units.describe import Described
    from skipway.units.links import Links

__all__ = ["dead_op"]

_DROPOUTS: Final = (nn.modules.dropout._DropoutNd,)  # noqa: SLF001  # their base class
_PYTORCHS_OWN: Final = "torch.nn.modules."


@rule(
    "dead-op",
    severity="warning",
    summary="A module inside a unit is built, or even run, and never influences the output.",
    explanation="Within the modules that hold residual units: parameters that nothing reads on the way to an output (a"
    " second convolution that reads the block's input, so that the first one's result is lost; a layer scale that is"
    " built and not applied), an activation or dropout whose result nobody reads, and dropout that is never called. A"
    " module whose parameters are read through its attributes (nn.MultiheadAttention.out_proj) is alive, and so is one"
    " that runs in the other mode or with other random numbers, and an expert that no token was sent to. Heads and"
    " other parts outside of units are not looked at.",
    fix="give the module the output of the one before it, or remove it",
    source="hypnopump/keras-wrn PR 2; NX-AI/tirex #19",
    faulty=program(CONV, unit="y = F.relu(self.norm1(self.first(x))); return x + self.norm2(self.second(x))", depth=4),
    healthy=program(CONV, unit="y = F.relu(self.norm1(self.first(x))); return x + self.norm2(self.second(y))", depth=4),
)
def dead_op(evidence: Evidence) -> Iterator[Finding]:
    """Fire for modules inside units whose parameters, or whose call, lead nowhere."""
    roots = _units_modules(evidence)
    found = _dead(evidence, roots, evidence.found.links)
    for links in further_runs(evidence, "dead-op") if found else ():
        again = _dead(evidence, roots, links)
        found = {key: why for key, why in found.items() if key in again}
        if not found:
            return
    by_kind: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (path, name), why in found.items():
        if any((around, "") in found for around in _around_path(path)):
            continue  # told of the module around it, as of a weight and its parametrization
        kind = type(evidence.model.get_submodule(path)).__name__
        what = f"parameter {name}" if name else f"{path.rpartition('.')[2]} ({kind})"
        by_kind.setdefault((what, why), []).append((path, name))
    for (what, why), places in by_kind.items():
        more = f" \N{MULTIPLICATION SIGN}{len(places)}" if len(places) > 1 else ""
        path, name = places[0]
        counted = "parameters" if name else "modules"
        full = f"{path}.{name}" if name else path
        yield RULES["dead-op"].finding(path, f"{what} {why}{more}", {counted: len(places), "name": full})


def _around_path(path: str) -> Iterator[str]:
    """Paths of the modules around one."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _units_modules(evidence: Evidence) -> list[str]:
    """Paths of the modules that hold units, none inside another.

    A unit that the whole model's forward adds is held by the modules that it calls for the branch.
    """
    found: set[str] = set()
    for unit, described, scope in zip(evidence.units, evidence.described, evidence.scopes, strict=True):
        if scope:
            found.add(evidence.graph.calls[scope[0]].path)
        if unit.kind == "unit":
            found |= _around(described, scope, evidence.graph)
    outermost: list[str] = []
    for path in sorted((p for p in found if p and "?" not in p), key=lambda p: p.split(".")):
        if not outermost or not path.startswith(f"{outermost[-1]}."):
            outermost.append(path)
    return sorted(outermost)


def _around(unit: Described, scope: Sequence[int], graph: Graph) -> set[str]:
    """The module call around branch and merge; where that is the model itself, the modules that make the branch."""
    chains = [graph.chain(call) for call in {graph.nodes[i].call for i in unit.candidate.region}]
    common = set(scope).intersection(*chains) if chains else set(scope)
    holder = next((c for c in scope if c in common), 0)
    if graph.calls[holder].path:
        return {graph.calls[holder].path}
    named = [[p for c in chain if (p := graph.calls[c].path)] for chain in chains]
    return {paths[-1] for paths in named if paths}


def _dead(evidence: Evidence, roots: Sequence[str], links: Links) -> dict[tuple[str, str], str]:
    """By module path (and parameter name, where only that is dead) what is wrong with it."""
    found: dict[tuple[str, str], str] = {}
    called = {call.path for call in links.graph.calls}
    alive = _alive_parameters(evidence, links)
    computed = _computed(links)
    default = links is evidence.found.links  # dropout computes nothing in evaluation: there it is still lost
    rates = _rates(links)
    chosen = choosing(links)
    for root in roots:
        routed = any(p == root or p.startswith(f"{root}.") or root.startswith(f"{p}.") for p in chosen)
        for path, module in _inside(root, evidence):
            parameters = module._parameters  # noqa: SLF001  # the public way nests generators
            own = {n: p for n, p in parameters.items() if p is not None and p.requires_grad} if parameters else {}
            dead = [n for n, p in own.items() if id(p) not in alive] if own else []
            if own and routed and _is_choice(path, evidence.model, alive):
                continue
            if dead and len(dead) == len(own) and path != root:
                found[path, ""] = "runs, and its result is lost" if path in called else "is never used"
            elif dead and (path in called or path == root):
                found |= {(path, name): "is never used" for name in dead if _is_scale_or_shift(own[name])}
            if own or not type(module).__module__.startswith(_PYTORCHS_OWN):
                continue
            if path in called and not computed.get(path, default):
                found[path, ""] = "runs, and its result is lost"
            elif _is_dropout_left_out(module, path, called, rates):
                found[path, ""] = "is never called"
    return found


def _inside(root: str, evidence: Evidence) -> Iterator[tuple[str, nn.Module]]:
    """A module and those in it; one that is met elsewhere first is looked at there, under the name of its calls."""
    modules = evidence.modules
    places = evidence.once("places of modules", lambda: {name: k for k, (name, _) in enumerate(modules)})
    if root not in places:  # a second name
        yield from named_modules(evidence.model.get_submodule(root), root)
        return
    inner = f"{root}."
    yield modules[places[root]]
    for k in range(places[root] + 1, len(modules)):
        if not modules[k][0].startswith(inner):
            return
        yield modules[k]


def _is_scale_or_shift(parameter: nn.Parameter) -> bool:
    """One number, or one for each channel: a table (XLNet's segments) may wait for an input that was not given."""
    return sum(size > 1 for size in parameter.shape) <= 1


def _alive_parameters(evidence: Evidence, links: Links) -> set[int]:
    names = alive_parameters(links)  # as the recorder found them: each once, under its first name
    return {
        id(p)
        for path, module in evidence.modules
        for name, p in module._parameters.items()  # noqa: SLF001  # as above
        if (f"{path}.{name}" if path else name) in names
    }


def _computed(links: Links) -> dict[str, bool]:
    """By path of the modules that computed something whether any of it leads to an output."""
    found: dict[str, bool] = {}
    for node in links.nodes:
        if node.inputs and node.floating:
            path = links.graph.calls[node.call].path
            found[path] = found.get(path, False) or links.alive[node.id]
    return found


def _is_choice(path: str, model: nn.Module, alive: set[int]) -> bool:
    """Whether a module lies in one of several alike (experts), of which another is alive."""
    parts = path.split(".")
    for k in range(1, len(parts)):
        several = model.get_submodule(".".join(parts[:k]))
        if isinstance(several, (nn.ModuleList, nn.ModuleDict)):
            one = several.get_submodule(parts[k])
            alike = [m for m in several.children() if type(m) is type(one) and m is not one]
            if any(id(p) in alive for m in alike for p in m.parameters()):
                return not any(id(p) in alive for p in one.parameters())
    return False


def _rates(links: Links) -> set[float]:
    """Rates of all dropout that was applied: attention drops by a number that it takes from a module, uncalled."""
    return {round(float(p), 6) for n in links.nodes if (p := _rate(n.op, n.attrs)) is not None}


def _is_dropout_left_out(module: nn.Module, path: str, called: set[str], rates: set[float]) -> bool:
    if not isinstance(module, _DROPOUTS) or not module.training or path in called:
        return False
    return module.p > 0 and round(float(module.p), 6) not in rates


def _rate(op: str, attrs: dict[str, object]) -> float | None:
    if op != "bernoulli" and op not in ops.DROPOUT:
        return None
    rate = attrs.get("p")
    if not isinstance(rate, (int, float)):
        return None
    return 1.0 - rate if op == "bernoulli" else rate  # of a mask, what is kept
