"""Rule ``dropout-on-shortcut``: dropout on the path."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, chains, module_of, repeated
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from skipway.diagnostics.finding import Finding
    from skipway.form import Op

__all__ = ["dropout_on_shortcut"]


@rule(
    "dropout-on-shortcut",
    severity="warning",
    summary="Dropout acts on the shortcut or on the sum: what the stream carries survives L units with (1-p)^L.",
    explanation="Dropout (or drop-path) stands on the shortcut, or behind the addition with another unit following."
    " The share of entries that it sets to zero is measured in training mode; in eval mode it is not there. Dropout of"
    " embeddings and behind the last unit is none of this.",
    fix="drop inside the branch: return x + self.dropout(self.branch(x))",
    source="He et al. 2016, arXiv 1603.05027, table 1f; Vaswani et al. 2017, arXiv 1706.03762, section 5.4",
    faulty=program(
        TOKENS,
        layers="self.dropout = nn.Dropout(0.1)",
        unit="return self.dropout(x + self.branch(self.norm(x)))",
        depth=4,
        rest="nn.LayerNorm(16)",
    ),
    healthy=program(
        TOKENS,
        layers="self.dropout = nn.Dropout(0.1)",
        unit="return x + self.dropout(self.branch(self.norm(x)))",
        depth=4,
        rest="nn.LayerNorm(16)",
    ),
    wants=lambda evidence: [
        Want(node=node, name="dropped", reduce=_dropped) for _, found in _dropping(evidence) for node, _ in found
    ],
)
def dropout_on_shortcut(evidence: Evidence) -> Iterator[Finding]:
    """Fire for dropout on the shortcut, and on the sum where another unit follows."""
    found = _dropping(evidence)
    if not found:
        return
    members = [m for m, _ in found]
    node, _ = found[0][1][0]
    kept = [1 - op.detail for _, drops in found for _, op in drops if isinstance(op.detail, float)]
    shares = [
        share for _, drops in found for i, _ in drops if (share := evidence.seen.get((i, "dropped"))) is not None
    ]  # fmt: skip
    survival = math.prod(kept) if len(kept) == sum(len(d) for _, d in found) else math.prod(1 - s for s in shares)
    said: dict[str, float | int | str] = {"units": len(members), "survival": survival}
    if shares:
        said["dropped_share"] = sum(shares) / len(shares)
    place = "shortcut" if node in members[0].described.shortcut_nodes else "sum"
    where = module_of(node, evidence)
    yield RULES["dropout-on-shortcut"].finding(
        members[0].path,
        f"{where} drops entries of the {place}: of what the stream carries {survival:.3g} survives"
        + ("" if shares else " (not measured)") + repeated(members),
        said,
        fix=f"move the dropout ({where}) from the {place} to the end of the branch: x + dropout(branch(x))",
    )  # fmt: skip


def _dropping(evidence: Evidence) -> list[tuple[Member, list[tuple[int, Op]]]]:
    """Units that drop on the path, each with the operations that do."""
    found = []
    for chain in chains(evidence):
        for k, member in enumerate(chain):
            form, described = member.unit.form, member.described
            drops = _paired(described.shortcut_nodes, form.shortcut, evidence)
            if k + 1 < len(chain):
                drops += _paired(described.after_nodes, form.after, evidence)
            if drops:
                found.append((member, drops))
    return sorted(found, key=lambda pair: pair[0].described.candidate.join)


def _paired(nodes: tuple[int, ...], ops_: tuple[Op, ...], evidence: Evidence) -> list[tuple[int, Op]]:
    """The dropout operations of a formula with the nodes where they run."""
    routes = evidence.found.routes
    dropping = []
    for i in nodes:
        node = evidence.graph.nodes[i]
        random = node.op in ops.MULTIPLY and len(evidence.found.links.data_inputs(node)) == 1
        if (node.op in ops.DROPOUT or (random and routes.scale(node)[0] == "dropout")) and routes.dropped(node) != 0:
            dropping.append(i)
    named = [op for op in ops_ if op.kind in ("dropout", "drop_path")]
    return list(zip(dropping, named, strict=False))


def _dropped(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Share of the entries that were something and are zero now."""
    signal = max(operands, key=lambda t: t.numel())
    return ((result == 0) & (signal != 0)).double().sum() / (signal != 0).double().sum().clamp_min(1)
