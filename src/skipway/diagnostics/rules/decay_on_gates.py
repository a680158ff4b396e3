"""Rule ``decay-on-gates``: weight decay pulls gates, layer scales and norm gains to zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.units.weights import parameter_names, scale_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    links = evidence.found.links
    gates = {n for unit in evidence.described for n in scale_weights(unit, links)}
    norms = [i for i, node in enumerate(links.nodes) if node.op in ops.NORM and links.alive[i]]
    gains = set(parameter_names(norms, links)) - gates
    decayed = {
        id(p): float(group["weight_decay"])
        for group in (evidence.optimizer.param_groups if evidence.optimizer is not None else ())
        if group.get("weight_decay", 0)
        for p in group["params"]
    }
    named = dict(evidence.model.named_parameters(remove_duplicate=False))
    found = [[n for n in named if n in kind and id(named[n]) in decayed] for kind in (gates, gains)]
    if not any(found):
        return
    first = (found[0] or found[1])[0]
    words = [
        f"{len(names)} {what}"
        for names, what in zip(found, ("scales of branches", "norm parameters"), strict=True)
        if names
    ]
    yield RULES["decay-on-gates"].finding(
        first.rpartition(".")[0],
        f"weight decay {decayed[id(named[first])]:g} on {' and '.join(words)}, {first} among them",
        {"scales": len(found[0]), "norm_parameters": len(found[1]), "weight_decay": decayed[id(named[first])]},
    )
