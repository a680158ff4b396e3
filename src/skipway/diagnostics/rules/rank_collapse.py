"""Rule ``rank-collapse``: tokens, channels or graph nodes become alike with depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, chains
from skipway.diagnostics.taps import similarity
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding

__all__ = ["FEWEST_UNITS", "LAST_UNITS", "UNLIKE", "ended", "rank_collapse", "similarities"]

# Over the 169 public models of the test zoo, freshly initialised, no stream of tokens ends above 0.93 and none of
# channels above 0.96 (in eval mode, where fresh BatchNorms do nothing); a dense graph net whose nodes have become alike
# reaches 0.966.
ALIKE: Final = 0.95
ALIKE_CHANNELS: Final = 0.98
# What is alike from the start (a batch of one repeated token) has not become so with depth.
UNLIKE: Final = 0.9
FEWEST_UNITS: Final = 6
LAST_UNITS: Final = 3
_MIXING: Final = ops.MATMUL | ops.BATCHED_MATMUL | frozenset({"sparse_mm", "spmm", "index_add", "scatter_add"})

_AVERAGING: Final = "x = x + self.up(x.mean(1, keepdim=True).expand_as(x))[..., :16]; return F.layer_norm(x, (16,))"


@rule(
    "rank-collapse",
    severity="warning",
    summary="Tokens (channels, graph nodes) become alike with depth: what tells them apart is lost.",
    explanation="The mean cosine between different tokens of one sample (channels of an image, nodes of a graph whose"
    " units mix them) is under 0.9 behind the first unit and above 0.95 (channels: 0.98) behind the last three of at"
    " least six. A symptom: its cause is what averages (attention, neighbourhoods) at a size that leaves"
    " nothing of the shortcut, see post-norm-deep. Sentences of one repeated token are alike from the start: no sign.",
    fix="make the branches small beside the shortcut: zero-initialise their last layer, or put the norm into the branch"
    " (x + F(norm(x))); in a graph net add the input to every layer",
    source="Dong et al. 2021, arXiv 2103.03404; Noci et al. 2022, arXiv 2206.03126; Li et al. 2019, arXiv 1904.03751",
    faulty=program(TOKENS, unit=_AVERAGING, depth=24),
    healthy=program(TOKENS, unit="return x + self.branch(self.norm(x))", depth=24, rest="nn.LayerNorm(16)"),
    needs=("signal",),
    wants=lambda evidence: [
        Want(node=m.described.end, name="similarity", reduce=_between_rows)
        for chain in chains(evidence)
        if _is_graph(chain, evidence)
        for m in chain
    ],
    symptom=True,
)
def rank_collapse(evidence: Evidence) -> Iterator[Finding]:
    """Fire for each stream whose tokens were different and are alike behind its last units."""
    for chain in chains(evidence):
        curve = similarities(chain, evidence)
        alike = ALIKE_CHANNELS if _what(chain) == "channels" else ALIKE
        if len(curve) < FEWEST_UNITS or curve[0][1] >= UNLIKE or ended(curve) < alike:
            continue
        place, _ = next((m, s) for m, s in curve if s >= alike)
        yield RULES["rank-collapse"].finding(
            place.path,
            f"the mean cosine between {_what(chain)} rises from {curve[0][1]:.2f} to {ended(curve):.3f} over"
            f" {len(curve)} units",
            {"units": len(curve), "similarity_first": curve[0][1], "similarity_last": ended(curve)},
        )


def similarities(chain: Sequence[Member], evidence: Evidence) -> list[tuple[Member, float]]:
    """Mean cosine between tokens behind each unit of a stream, where it was measured."""
    found = []
    for member in chain:
        value = member.unit.numbers.similarity
        if value is None:
            value = evidence.seen.get((member.described.end, "similarity"))
        if value is not None:
            found.append((member, value))
    return found


def ended(curve: Sequence[tuple[Member, float]]) -> float:
    """The smallest of the last values: one outlier is no end."""
    return min((s for _, s in curve[-LAST_UNITS:]), default=0.0)


def _what(chain: Sequence[Member]) -> str:
    return {3: "tokens", 4: "channels"}.get(len(chain[0].unit.shape), "nodes")


def _is_graph(chain: Sequence[Member], evidence: Evidence) -> bool:
    """Whether the stream is a matrix whose rows the branches mix: graph nodes, tokens without a batch."""
    if len(chain) < FEWEST_UNITS or any(len(m.unit.shape) != 2 for m in chain):
        return False
    links = evidence.found.links
    for i in chain[0].described.candidate.region:
        node = links.nodes[i]
        data = links.data_inputs(node)
        if node.op in _MIXING and data and (len(data) > 1 or node.inputs[-1] == data[0]):
            return True
    return False


def _between_rows(result: torch.Tensor, _operands: Sequence[torch.Tensor]) -> torch.Tensor:
    found = similarity(result.unsqueeze(0))
    return torch.tensor(0.0) if found is None else found
