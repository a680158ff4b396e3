"""Rule ``projected-shortcut``: weights on shortcuts that could be identities."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from skipway.diagnostics.rules._programs import CONV, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, chains, has, keeps_shape, module_of, repeated
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["projected_shortcut"]


@rule(
    "projected-shortcut",
    severity="warning",
    summary="Shortcuts hold a projection although the stream keeps its shape: an identity would do.",
    explanation="A convolution or linear layer stands on the shortcut of a unit whose stream has one shape before and"
    " behind it. Fires where such a unit is not the first of its stage: a projection at a transition between stages,"
    " and at the first unit of a stage also where it changes nothing, is how ResNets are built.",
    fix="use the identity as shortcut, return x + self.branch(x), and keep the projection for the units whose shape"
    " changes",
    source="He et al. 2016, arXiv 1603.05027, table 1e",
    faulty=program(
        CONV,
        layers="self.project = nn.Conv2d(8, 8, 1)",
        unit="return self.project(x) + self.second(F.relu(self.norm1(self.first(x))))",
        depth=4,
    ),
    healthy=program(CONV, unit="return x + self.second(F.relu(self.norm1(self.first(x))))", depth=4),
    explains=("gradient-vanishing", "gradient-exploding"),
)
def projected_shortcut(evidence: Evidence) -> Iterator[Finding]:
    """Fire for shape-preserving units with a projection, if one of them lies within a stage."""
    for chain in chains(evidence):
        projected = [m for m in chain if _is_projected(m, evidence)]
        within = [m for before, m in pairwise(chain) if m in projected and _one_stage(before, m)]
        if not within:
            continue
        first = projected[0]
        node = _projection(first, evidence)
        layer = _spelled(node, evidence)
        keeping = [m for m in chain if keeps_shape(m, evidence)]
        yield RULES["projected-shortcut"].finding(
            first.path,
            f"{layer} in {module_of(node, evidence)} projects a shortcut that keeps its shape{repeated(projected)}",
            {"units": len(projected), "units_that_keep_shape": len(keeping), "layer": layer},
            fix=f"replace {layer} in {module_of(node, evidence)} by nn.Identity()"
            + (f", and so in the other {len(projected) - 1} units" if len(projected) > 1 else "")
            + ": a projection belongs only where the shape changes",
        )


def _is_projected(member: Member, evidence: Evidence) -> bool:
    """Whether a shortcut holds a projection that it could do without; a sum of more than the unit's own is none.

    Such a sum collects what many layers give out (the skip outputs of a WaveNet).
    """
    others = any(evidence.found.links.is_data(term.node) for term in member.described.candidate.sides)
    return has(member.unit.form.shortcut, "projection") and keeps_shape(member, evidence) and not others


def _one_stage(before: Member, unit: Member) -> bool:
    return before.unit.shape == unit.unit.shape


def _projection(member: Member, evidence: Evidence) -> int:
    nodes = evidence.graph.nodes
    named = [i for i in member.described.shortcut_nodes if nodes[i].op in ops.WEIGHTED]
    return named[0] if named else member.described.candidate.join


def _spelled(i: int, evidence: Evidence) -> str:
    """The layer as it would be typed, e.g. ``nn.Conv2d(64, 128, 1, stride=2)``."""
    links = evidence.found.links
    node = links.nodes[i]
    weights = [links.nodes[j].shape for j in node.inputs if not links.nodes[j].data and len(links.nodes[j].shape) > 1]
    data = links.data_inputs(node)
    if not weights or not data:
        return "the projection"
    before = links.nodes[data[0]].shape
    if node.op in ops.CONVOLUTION:
        kernel = weights[0][2:]
        size = str(kernel[0]) if len(set(kernel)) == 1 else repr(tuple(kernel))
        return f"nn.Conv{len(kernel)}d({before[1]}, {node.shape[1]}, {size})"
    return f"nn.Linear({before[-1]}, {node.shape[-1]})"
