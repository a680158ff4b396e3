"""Rule ``train-eval-mismatch``: branches that are dropped by chance and not made up for."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.units.describe import describe
from skipway.units.find import find
from skipway.units.naming import paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from skipway.diagnostics.finding import Finding
    from skipway.diagnostics.lab import Lab, Mode
    from skipway.trace.graph import Graph
    from skipway.units.describe import Described

__all__ = ["train_eval_mismatch"]

_SEEDS: Final = 24
_MISS: Final = 0.05
_CERTAIN: Final = 4.0  # standard errors
_MOST_UNITS: Final = 4


@dataclass
class _Seen:
    """What a branch added in eval mode, and how much of it came in each run in train mode."""

    branch: torch.Tensor | None = None
    shares: list[float] = field(default_factory=list)


@rule(
    "train-eval-mismatch",
    severity="error",
    summary="On average a branch adds another amount in training than in evaluation.",
    explanation="A branch that is kept with probability p has to be divided by p in training (or multiplied by it in"
    " evaluation), and nothing may be dropped in evaluation. Measured where the branch is added: its projection on what"
    f" it is in evaluation, over {_SEEDS} draws, with its standard error; BatchNorm uses the batch's statistics in both"
    " modes. Asked only of branches whose end is random in train mode.",
    fix="divide what is kept by the probability of keeping it, in training only: keep / p, or use"
    " torchvision.ops.StochasticDepth",
    source="mosaicml/composer #372; huggingface/pytorch-image-models #887, #2118; Huang et al. 2016, arXiv 1603.09382",
    faulty=program(
        TOKENS, depth=4,
        unit="keep = (torch.rand(len(x), 1, 1) < 0.7).to(x.dtype) if self.training else 1.0;"
        "return x + keep * self.branch(self.norm(x))",
    ),
    healthy=program(
        TOKENS, depth=4,
        unit="keep = (torch.rand(len(x), 1, 1) < 0.7).to(x.dtype) / 0.7 if self.training else 1.0;"
        "return x + keep * self.branch(self.norm(x))",
    ),
    needs=("runs",),
)  # fmt: skip
def train_eval_mismatch(evidence: Evidence) -> Iterator[Finding]:
    """Fire for the first random branch whose mean in train mode is not its value in eval mode."""
    if evidence.lab is None or evidence.trace.error is not None:
        return
    try:
        train = _joins(evidence.lab, "train")
        random = [path for path, (graph, unit) in train.items() if _is_random(unit, graph)]
        if not random:
            return
        evaluated = _joins(evidence.lab, "eval")
        common = [p for p in random if p in evaluated][:_MOST_UNITS]
        seen = _measured(evidence.lab, train, evaluated, common)
    except Exception:  # noqa: BLE001  # a model that fails in one of the modes has no mean to compare
        return
    still = [p for p in common if _is_random(evaluated[p][1], evaluated[p][0])]
    for path in common:
        shares = seen[path].shares
        if len(shares) < 2:
            continue
        mean = statistics.fmean(shares)
        error = statistics.stdev(shares) / math.sqrt(len(shares))
        if path in still and error > 0:
            what = "the branch is still dropped at random in eval mode"
        elif abs(mean - 1) > max(_MISS, _CERTAIN * error):
            what = f"in training the branch adds {mean:.3g} of what it adds in evaluation, on average"
        else:
            continue
        yield RULES["train-eval-mismatch"].finding(
            path, what, {"train_over_eval": mean, "standard_error": error, "draws": len(shares), "units": len(random)}
        )
        return


def _joins(lab: Lab, mode: Mode) -> dict[str, tuple[Graph, Described]]:
    """Units by path as they are in a mode, with the graph that they were recorded in."""
    graph = lab.trace("train-eval-mismatch", mode=mode, batch_statistics=True).graph
    found = find(graph)
    described = describe(found)
    return {p: (graph, u) for p, u in zip(paths(described, found.links), described, strict=True)}


def _is_random(unit: Described, graph: Graph) -> bool:
    nodes = graph.nodes
    ends = [i for tail in unit.tails for i in (*tail.nodes, tail.output)]
    return any(
        nodes[i].op in ops.DROPOUT or any(not nodes[j].data and nodes[j].taint & 4 for j in nodes[i].inputs)
        for i in ends
    )


def _measured(
    lab: Lab,
    train: dict[str, tuple[Graph, Described]],
    evaluated: dict[str, tuple[Graph, Described]],
    chosen: Sequence[str],
) -> dict[str, _Seen]:
    seen = {path: _Seen() for path in chosen}
    for path in chosen:  # one at a time, so that what comes before a branch is the same in both modes
        graph, unit = evaluated[path]
        lab.look(
            "train-eval-mismatch",
            graph,
            [_want(graph, unit, seen[path], keep=True)],
            mode="eval",
            batch_statistics=True,
        )
        graph, unit = train[path]
        for seed in range(_SEEDS):
            lab.look(
                "train-eval-mismatch", graph, [_want(graph, unit, seen[path], keep=False)], mode="train", seed=seed
            )
        break
    return seen


def _want(graph: Graph, unit: Described, seen: _Seen, *, keep: bool) -> Want:
    node = graph.nodes[unit.candidate.join]
    position = unit.candidate.shortcut.position

    def reduce(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> float:
        branch = operands[1 - position] if len(operands) == 2 else result - operands[position]
        flat = branch.detach().double()
        if keep:
            seen.branch = flat.clone()
        elif seen.branch is not None and seen.branch.shape == flat.shape:
            seen.shares.append(float((flat * seen.branch).sum() / seen.branch.square().sum().clamp_min(1e-300)))
        return 0.0

    return Want(node=node.id, name="branch", reduce=reduce)
