"""Rule ``decay-on-gates``: weight decay pulls gates, layer scales and norm gains to zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.units.weights import parameter_names, scale_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from skipway.diagnostics.finding import Finding

__all__ = ["decay_on_gates"]

_PROGRAM: Final = program(
    TOKENS,
    layers="self.alpha = nn.Parameter(torch.zeros(()))",
    unit="return x + self.alpha * self.branch(self.norm(x))",
    depth=4,
)
_GROUPS: Final = """small = [p for p in model.parameters() if p.dim() < 2]
large = [p for p in model.parameters() if p.dim() > 1]
optimizer = torch.optim.AdamW([{"params": large}, {"params": small, "weight_decay": 0.0}], weight_decay=0.1)
"""


@rule(
    "decay-on-gates",
    severity="warning",
    summary="Weight decay pulls the scales of branches, or the gains of norms, to zero.",
    explanation="A parameter group of the optimizer has a weight decay above 0 and holds what scales a branch (ReZero's"
    " α, LayerScale) or a norm's gain. Decay draws them to 0, where a branch is shut, instead of to a simpler function."
    " Matrices and kernels are meant to decay.",
    fix="give parameters of fewer than two dimensions a group of their own: {'params': small, 'weight_decay': 0.0}",
    source="majumderb/rezero #14; Touvron et al. 2021, arXiv 2103.17239",
    faulty=f"{_PROGRAM}optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)\n",
    healthy=_PROGRAM + _GROUPS,
    needs=("optimizer",),
)
def decay_on_gates(evidence: Evidence) -> Iterator[Finding]:
    """Fire for groups with a decay that hold gates or gains."""
    gates = _gates(evidence)
    gains = _gains(evidence) - gates
    decayed = {
        id(p): float(group["weight_decay"])
        for group in (evidence.optimizer.param_groups if evidence.optimizer is not None else ())
        if group.get("weight_decay", 0)
        for p in group["params"]
    }
    named = evidence.parameters
    found = [[n for n in named if n in kind and id(named[n]) in decayed] for kind in (gates, gains)]
    if not any(found):
        return
    first = (found[0] or found[1])[0]
    words = [
        f"{len(names)} {what}"
        for names, what in zip(found, ("scales of branches", "norm parameters"), strict=True)
        if names
    ]
    large = next((n for n in found[0] if named[n].dim() > 1), None)
    yield RULES["decay-on-gates"].finding(
        first.rpartition(".")[0],
        f"weight decay {decayed[id(named[first])]:g} on {' and '.join(words)}, {first} among them",
        {"scales": len(found[0]), "norm_parameters": len(found[1]), "weight_decay": decayed[id(named[first])]},
        fix=None if large is None else _by_name(large, named[large]),
    )


def _by_name(name: str, parameter: nn.Parameter) -> str:
    """The fix where the number of dimensions does not tell scales from matrices."""
    last = name.rpartition(".")[2]
    return (
        f"give the scales a group of their own, by name, for {name} has {parameter.dim()} dimensions:"
        f" scales = [p for n, p in model.named_parameters() if n.endswith('{last}')];"
        " {'params': scales, 'weight_decay': 0.0}; and norms and biases with them"
    )


def _gates(evidence: Evidence) -> set[str]:
    """Learned factors behind a branch or on a shortcut, and single numbers within a branch (Fixup)."""
    links = evidence.found.links
    named = evidence.parameters
    found: set[str] = set()
    for unit in evidence.described:
        found.update(scale_weights(unit, links))
        found.update(parameter_names([i for i in unit.shortcut_nodes if links.nodes[i].op in ops.MULTIPLY], links))
        within = parameter_names([i for i in unit.candidate.region if links.nodes[i].op in ops.MULTIPLY], links)
        found.update(n for n in within if n in named and named[n].numel() == 1)
    return found - _gains(evidence)


def _gains(evidence: Evidence) -> set[str]:
    """Parameters of all norms, those written by hand too."""
    links, steps = evidence.found.links, evidence.found.routes.steps
    norms = []
    for node in links.nodes:
        if not links.alive[node.id] or not node.data:
            continue
        if node.op in ops.NORM:
            norms.append(node.id)
        elif node.op in ops.MULTIPLY and any(links.nodes[j].params for j in node.inputs):
            data = links.data_inputs(node)
            before = steps(links.strip(data[0])) if len(data) == 1 else []
            if before and before[0].kind == "norm" and links.nodes[before[0].node].op in ops.MULTIPLY:
                norms.append(node.id)
    return set(parameter_names(norms, links))
